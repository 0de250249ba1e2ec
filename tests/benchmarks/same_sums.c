/* Prints the bytes of results of the kernel for made-up tensors, to be compared between machines. Status 2 if the loops
 * for AVX-512 give other bytes. */

#include <stdio.h>
#include <stdlib.h>
#include "native.c"

#define LONGEST 5000

static uint64_t state = 88172645463325252ULL;

static uint64_t any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* By style: 0 neighbours, 1 any bits, 2 neighbours and a few of any bits. */
static void fill(uint8_t *x, uint8_t *y, size_t width, int style) {
    for (size_t i = 0; i < LONGEST; i++) {
        uint64_t bits = any(), other = any();
        if (style != 1) { /* no large exponents */
            bits &= ~(1ULL << (8 * width - 2));
            other = bits ^ (any() & 3);
        }
        if (style == 2 && any() % 97 == 0) bits = any();
        memcpy(x + i * width, &bits, width);
        memcpy(y + i * width, &other, width);
    }
}

static void print(const char *name, int type, int style, int n, const void *result, size_t size) {
    const uint64_t *words = result; /* counts and doubles alike */
    printf("%s %d %d %d", name, type, style, n);
    for (size_t i = 0; i < size / 8; i++) { /* the sign and payload of a NaN that was made are the machine's own */
        double value;
        memcpy(&value, words + i, 8);
        isnan(value) ? printf(" nan") : printf(" %016llx", (unsigned long long)words[i]);
    }
    printf("\n");
}

static void measure_in_two(moments_t *m, const uint8_t *x, const uint8_t *y, int n, const bars_t *bars) {
    size_t half = (size_t)(n / 2) * width_of(bars->x_type);
    memset(m, 0, sizeof *m);
    begin(m);
    npucmp_measure((const char *)x, 0, (const char *)y, 0, n / 2, 0, bars, m);
    npucmp_measure((const char *)x, half, (const char *)y, half, n - n / 2, n / 2, bars, m);
}

int main(void) {
    static const double masks[] = {1e4, 65504, 1e9};
    static const double tiny[] = {0x1p-1022, 0x1p-126, 0x1p-14, 0x1p-126, 0x1p-6};
    static const double largest[] = {1.7976931348623157e308, 3.4028234663852886e38, 65504, 3.3895313892515355e38, 448};
    static const int lengths[] = {1, 7, 511, 512, 513, LONGEST};
    double edges[BINS] = {0x1p-1074, 0x1p-1074};
    float table[256];
    uint8_t *x = malloc(8 * LONGEST), *y = malloc(8 * LONGEST);
    if (!x || !y) return 1;
    for (int i = 2; i < BINS; i++) edges[i] = pow(10, i - 20);
    for (int i = 0; i < 256; i++) table[i] = i % 128 == 127 ? NAN : ldexpf((float)(8 + i % 8), i / 8 % 16 - 10);
    for (int type = FLOAT64; type <= TABLE8; type++)
        for (int style = 0; style < 3; style++) {
            fill(x, y, width_of(type), style);
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
                moments_t m, wide;
                bars_t bars = {.x_type = type, .y_type = type, .ulp = SAME, .same_type = 1,
                               .floor = tiny[type], .rtol = 1e-3, .atol = 1e-5,
                               .highest_mask = largest[type], .mask_bound = -9921.875, .masks = masks, .mask_count = 3,
                               .edges = edges, .x_table = table, .y_table = table};
                measure_in_two(&m, x, y, lengths[k], &bars);
                bars.avx512 = npucmp_avx512();
                measure_in_two(&wide, x, y, lengths[k], &bars);
                if (memcmp(&m, &wide, sizeof m)) return 2;
                print("pair", type, style, lengths[k], &m, sizeof m);
                side_t side;
                npucmp_side(x, lengths[k], type, table, &side);
                print("side", type, style, lengths[k], &side, sizeof side);
            }
        }
    return 0;
}

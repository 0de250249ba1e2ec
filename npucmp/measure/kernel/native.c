/* The kernel of numpy_kernel.py for pairs of floats, in one pass over tiles that fit the first-level cache.
 *
 * Python checks all pointers and lengths. The kernel allocates nothing, keeps no state, and writes only to its result,
 * to which it adds the next block of a tensor. All sums use two times four double lanes, which are added up in a fixed
 * order, and products are never fused with sums, so that the result is the same on every machine and for every
 * instruction set. A tile with only finite values and no possible mask is measured with vectors; any other tile element
 * by element.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TILE 512 /* four arrays of this many doubles fit 32 KB */
#define LANES 4
#define BINS 24
#define EDGES 4 /* bin edges compared in one pass */
#define BELOW_1E3 17 /* bins */
#define SHORT_BITS 11 /* significant bits of float16; bfloat16 has fewer */
#define SINGLE_BITS 24
#define DOUBLE_BITS 53
#define FRACTION 0x007fffffu /* of a float32; its highest bits follow the implicit one */
#define BEYOND_SHORT 0x00001fffu
#define PLACE_8 0x00010000u
#define PLACE_11 0x00002000u
#define PRIME32_1 0x9e3779b1u /* primes of xxHash, as in numpy_kernel.py */
#define PRIME32_2 0x85ebca77u
#define NAN32 0x7fc00000u

#ifdef VERSIONS /* given on the command line */
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define VERSIONS __attribute__((target_clones("default", "avx2", "avx512f"))) /* the loader selects for the CPU */
#else
#define VERSIONS
#endif
#ifndef AVX512_BUILT /* given on the command line: 0 excludes avx512.h */
#define AVX512_BUILT (__x86_64__ && __gnu_linux__ && __GNUC__ && !__clang__)
#endif
#define INLINE static inline __attribute__((always_inline))

typedef double f64x4 __attribute__((vector_size(32)));
typedef int64_t i64x4 __attribute__((vector_size(32)));
typedef uint64_t u64x4 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
#define TOP32 ((i32x8){INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN})

enum { FLOAT64 = 0, FLOAT32 = 1, FLOAT16 = 2, BFLOAT16 = 3, TABLE8 = 4 };
enum { NO_ULP = 0, SAME = 1, TO_FLOAT32 = 2, TO_FLOAT16 = 3, TO_BFLOAT16 = 4 };

/* Type, name and merge of each field: the rows of npucmp/model/moments.py, in order. Python reads them from
 * npucmp_record and rejects this kernel if they differ from its own. */
#define SIDE(ROW) \
    ROW(int64_t, nan, SUM) \
    ROW(int64_t, posinf, SUM) \
    ROW(int64_t, neginf, SUM) \
    ROW(double, minimum, LEAST) \
    ROW(double, maximum, MOST) \
    ROW(double, total, SUM) \
    ROW(double, squares, SUM) \
    ROW(int64_t, bits, MOST) \
    ROW(double, last_bit, LEAST) \
    ROW(double, nonzero, SUM) \
    ROW(double, full_8, SUM) \
    ROW(double, full_11, SUM) \
    ROW(uint64_t, hash, WORD_SUMS)

#define MOMENTS(ROW) \
    ROW(int64_t, elements, SUM) \
    ROW(side_t, target, HALF) \
    ROW(side_t, golden, HALF) \
    ROW(int64_t, compared, SUM) \
    ROW(int64_t, masked, SUM) \
    ROW(int64_t, mismatched, SUM) \
    ROW(int64_t, equal, SUM) \
    ROW(double, xx, SUM) \
    ROW(double, yy, SUM) \
    ROW(double, xy, SUM) \
    ROW(double, sum_d, SUM) \
    ROW(double, sum_abs, SUM) \
    ROW(double, sum_dd, SUM) \
    ROW(double, max_abs, MOST) \
    ROW(int64_t, max_abs_index, PLACE) \
    ROW(wide_t, max_abs_exact, MOST_WIDE) \
    ROW(double, max_rel, MOST) \
    ROW(int64_t, max_rel_index, PLACE) \
    ROW(double, sum_rel, SUM) \
    ROW(int64_t, below_1e3, SUM) \
    ROW(int64_t, below_5e3, SUM) \
    ROW(int64_t, outside, SUM) \
    ROW(wide_t, max_ulp, MOST_WIDE) \
    ROW(decades_t, histogram, SUMS)

#define MEMBER(type, name, merge) type name;
#define WORDS(type, name, merge) #type " " #name " " #merge ";"
#define TEXT(value) #value
#define VALUE(macro) TEXT(macro)

#define NO_INTEGER UINT64_MAX

typedef int64_t decades_t[BINS];
typedef struct {
    uint64_t high, low; /* high is NO_INTEGER: no value */
} wide_t;
typedef struct {
    SIDE(MEMBER)
} side_t;
typedef struct {
    MOMENTS(MEMBER)
} moments_t;
const char *const npucmp_record = VALUE(BINS) " decades;" SIDE(WORDS) MOMENTS(WORDS);

typedef struct {
    int32_t x_type, y_type, ulp, same_type, avx512; /* the last: whether to use the loops of avx512.h */
    double floor, rtol, atol, highest_mask, mask_bound;
    const double *masks, *x_masks, *y_masks; /* mask_values.py: equal on both sides, of each type */
    int64_t mask_count, x_count, y_count;
    const double *edges;      /* lower edge of each bin; for the first two the least number above zero */
    const float *x_table, *y_table; /* the 256 values of 8-bit types */
} bars_t;

INLINE f64x4 splat(double value) { return (f64x4){value, value, value, value}; }
INLINE f64x4 absolute(f64x4 v) { return (f64x4)((u64x4)v & 0x7fffffffffffffffULL); }
INLINE f64x4 choose(i64x4 which, f64x4 a, f64x4 b) {
    return (f64x4)(((i64x4)a & which) | ((i64x4)b & ~which));
}

INLINE double added(f64x4 v) {
    return (v[0] + v[1]) + (v[2] + v[3]);
}
INLINE int64_t counted(i64x4 v) { return v[0] + v[1] + v[2] + v[3]; }
INLINE double largest_of(f64x4 v) {
    double found = v[0];
    for (int i = 1; i < LANES; i++) found = v[i] > found ? v[i] : found;
    return found;
}
INLINE double smallest_of(f64x4 v) { return -largest_of(-v); }

/* float16 to float32: a product shifts the exponent, which is also correct for subnormal numbers */
INLINE f32x8 from_float16(u32x8 wide) {
    i32x8 magnitude = (i32x8)((wide & 0x7fff) << 13);
    f32x8 scaled = (f32x8)magnitude * 0x1p112f;
    u32x8 special = (u32x8)(magnitude >= 0x0f800000); /* NaN and Inf keep the highest exponent */
    u32x8 bits = ((u32x8)scaled & ~special) | (((u32x8)magnitude | 0x7f800000u) & special);
    return (f32x8)(bits | ((wide & 0x8000) << 16));
}

/* Eight 16-bit elements as doubles. */
INLINE void widen8(double *into, const uint16_t *data, int type) {
    u16x8 raw;
    memcpy(&raw, data, sizeof raw);
    u32x8 wide = __builtin_convertvector(raw, u32x8);
    f32x8 v = type == FLOAT16 ? from_float16(wide) : (f32x8)(wide << 16);
    f32x4 half[2];
    memcpy(half, &v, sizeof v);
    for (int k = 0; k < 2; k++) {
        f64x4 d = __builtin_convertvector(half[k], f64x4);
        memcpy(into + k * LANES, &d, sizeof d);
    }
}

INLINE f64x4 load4(const void *data, int type, int64_t at, const float *table) {
    switch (type) {
    case FLOAT64: {
        f64x4 v;
        memcpy(&v, (const double *)data + at, sizeof v);
        return v;
    }
    case FLOAT32: {
        f32x4 v;
        memcpy(&v, (const float *)data + at, sizeof v);
        return __builtin_convertvector(v, f64x4);
    }
    default: {
        const uint8_t *raw = (const uint8_t *)data + at;
        return (f64x4){table[raw[0]], table[raw[1]], table[raw[2]], table[raw[3]]};
    }
    }
}

/* Whether float32 holds all values of a type that is not read from a table. */
INLINE int in_float32(int type) { return type == FLOAT32 || type == FLOAT16 || type == BFLOAT16; }

INLINE size_t width_of(int type) { return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : type == TABLE8 ? 1 : 2; }

/* A tile as doubles, padded with zeros to a multiple of eight. */
INLINE void widen(double *into, const void *data, int type, int64_t at, int64_t n, const float *table) {
    size_t width = width_of(type);
    uint8_t rest[64] = {0};
    int64_t whole = n & ~(int64_t)7;
    memcpy(rest, (const uint8_t *)data + (size_t)(at + whole) * width, (size_t)(n - whole) * width);
    if (type == FLOAT16 || type == BFLOAT16) {
        for (int64_t i = 0; i < whole; i += 8) widen8(into + i, (const uint16_t *)data + at + i, type);
        if (whole < n) widen8(into + whole, (const uint16_t *)rest, type);
    } else {
        for (int64_t i = 0; i < whole; i += LANES) {
            f64x4 v = load4(data, type, at + i, table);
            memcpy(into + i, &v, sizeof v);
        }
        for (int64_t i = whole; i < n; i += LANES) {
            f64x4 v = load4(rest, type, i - whole, table);
            memcpy(into + i, &v, sizeof v);
        }
    }
    for (int64_t k = n; k < whole + 8; k++) into[k] = 0.0;
}

/* Integers in the order of the floats; neighbours differ by one, and both zeros are 0. */
INLINE int64_t ordered(uint64_t bits, int width) {
    uint64_t sign = (uint64_t)1 << (width - 1);
    int64_t magnitude = (int64_t)(bits & (sign - 1));
    return bits & sign ? -magnitude : magnitude;
}

INLINE uint64_t bits_at(const void *data, int type, int64_t at) {
    switch (type) {
    case FLOAT64: return ((const uint64_t *)data)[at];
    case FLOAT32: return ((const uint32_t *)data)[at];
    case TABLE8: return ((const uint8_t *)data)[at];
    default: return ((const uint16_t *)data)[at];
    }
}

INLINE uint64_t apart(int64_t a, int64_t b) { return a >= b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a; }

INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Doubles rounded to float32, as integers in the order of the values. */
INLINE i32x4 order32(f64x4 wide) {
    i32x4 bits = (i32x4)__builtin_convertvector(wide, f32x4), sign = bits >> 31;
    return ((bits & 0x7fffffff) ^ sign) - sign;
}

/* float32 to the nearest float16, ties to even: below the normal range by adding a number whose last place is that of
 * float16. */
INLINE i32x4 order16(f64x4 wide) {
    i32x4 bits = (i32x4)__builtin_convertvector(wide, f32x4), sign = bits >> 31, size = bits & 0x7fffffff;
    i32x4 normal = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
    i32x4 small = (i32x4)((f32x4)size + 0.5f) - 0x3f000000;
    i32x4 is_small = size < 0x38800000, is_large = size >= 0x47800000;
    i32x4 found = (small & is_small) | (normal & ~is_small & ~is_large) | (is_large & 0x7c00);
    return (found ^ sign) - sign;
}

INLINE i32x4 order_bfloat16(f64x4 wide) {
    i32x4 bits = (i32x4)__builtin_convertvector(wide, f32x4), sign = bits >> 31, size = bits & 0x7fffffff;
    i32x4 found = (i32x4)(((u32x4)size + 0x7fffu + (u32x4)((size >> 16) & 1)) >> 16);
    return (found ^ sign) - sign;
}

/* Largest distance in a vector of such integers, stored as signed numbers with the top bit inverted. */
INLINE i32x8 farther(i32x8 most, i32x8 p, i32x8 q) {
    i32x8 swap = p < q, d = (i32x8)((((u32x8)p - (u32x8)q) ^ (u32x8)swap) - (u32x8)swap) ^ TOP32, larger = d > most;
    return (d & larger) | (most & ~larger);
}

INLINE uint32_t farthest_of(i32x8 most) {
    uint32_t found = 0;
    for (int k = 0; k < 8; k++) {
        uint32_t d = (uint32_t)most[k] ^ 0x80000000u;
        found = d > found ? d : found;
    }
    return found;
}

INLINE i32x8 in_order(i32x8 bits, int32_t magnitude) {
    i32x8 sign = bits >> 31, found = bits ^ (sign & magnitude);
    return found - sign;
}

INLINE uint32_t ulp32(const int32_t *a, const int32_t *b, int64_t n) {
    uint32_t signs = 0, apart32 = 0; /* for numbers of one sign, the distance is that of their bits */
    for (int64_t i = 0; i < n; i++) {
        uint32_t d = (uint32_t)a[i] - (uint32_t)b[i], size = (int32_t)d < 0 ? 0 - d : d;
        apart32 = size > apart32 ? size : apart32;
        signs |= (uint32_t)(a[i] ^ b[i]);
    }
    if (!(signs >> 31)) return apart32;
    i32x8 most = TOP32;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        i32x8 x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        most = farther(most, in_order(x, 0x7fffffff), in_order(y, 0x7fffffff));
    }
    uint32_t found = farthest_of(most);
    for (; i < n; i++) {
        uint64_t d = apart(ordered((uint32_t)a[i], 32), ordered((uint32_t)b[i], 32));
        found = d > found ? (uint32_t)d : found;
    }
    return found;
}

INLINE uint32_t ulp16(const int16_t *a, const int16_t *b, int64_t n) {
    i32x8 most = TOP32;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        i16x8 x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        most = farther(most, in_order(__builtin_convertvector(x, i32x8), 0x7fff),
                       in_order(__builtin_convertvector(y, i32x8), 0x7fff));
    }
    uint32_t found = farthest_of(most);
    for (; i < n; i++) {
        uint64_t d = apart(ordered((uint16_t)a[i], 16), ordered((uint16_t)b[i], 16));
        found = d > found ? (uint32_t)d : found;
    }
    return found;
}

INLINE i64x4 order64(u64x4 bits) {
    i64x4 negative = (i64x4)bits < 0, magnitude = (i64x4)(bits & 0x7fffffffffffffffULL);
    return (magnitude ^ negative) - negative;
}

INLINE uint64_t ulp64(const uint64_t *a, const uint64_t *b, int64_t n) {
    const u64x4 top = {1ULL << 63, 1ULL << 63, 1ULL << 63, 1ULL << 63}; /* for unsigned comparison of signed numbers */
    i64x4 most = (i64x4)top;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        u64x4 x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        i64x4 p = order64(x), q = order64(y), swap = p < q;
        i64x4 d = (i64x4)(((((u64x4)p - (u64x4)q) ^ (u64x4)swap) - (u64x4)swap) ^ top), larger = d > most;
        most = (d & larger) | (most & ~larger);
    }
    uint64_t found = 0;
    for (int k = 0; k < LANES; k++) {
        uint64_t d = (uint64_t)most[k] ^ (1ULL << 63);
        found = d > found ? d : found;
    }
    for (; i < n; i++) {
        uint64_t d = apart(ordered(a[i], 64), ordered(b[i], 64));
        found = d > found ? d : found;
    }
    return found;
}

/* Largest distance over a tile of finite values. */
INLINE uint64_t tile_ulp(const void *x, const void *y, const double *wide_x, const double *wide_y, int64_t at, int64_t n,
                         const bars_t *bars) {
    uint64_t most = 0;
    if (bars->ulp == SAME && bars->x_type == FLOAT32) {
        return ulp32((const int32_t *)x + at, (const int32_t *)y + at, n);
    }
    if (bars->ulp == SAME && (bars->x_type == FLOAT16 || bars->x_type == BFLOAT16))
        return ulp16((const int16_t *)x + at, (const int16_t *)y + at, n);
    if (bars->ulp == SAME && bars->x_type == FLOAT64)
        return ulp64((const uint64_t *)x + at, (const uint64_t *)y + at, n);
    if (bars->ulp == SAME) {
        int width = 8 * (int)width_of(bars->x_type);
        for (int64_t i = 0; i < n; i++) {
            uint64_t d = apart(ordered(bits_at(x, bars->x_type, at + i), width),
                               ordered(bits_at(y, bars->y_type, at + i), width));
            most = d > most ? d : most;
        }
        return most;
    }
    i32x4 most4 = {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN}, top = most4;
    for (int64_t i = 0; i < n; i += LANES) { /* the zeros beyond n have distance 0 */
        f64x4 a, b;
        memcpy(&a, wide_x + i, sizeof a);
        memcpy(&b, wide_y + i, sizeof b);
        i32x4 p, q;
        if (bars->ulp == TO_FLOAT32) p = order32(a), q = order32(b);
        else if (bars->ulp == TO_FLOAT16) p = order16(a), q = order16(b);
        else p = order_bfloat16(a), q = order_bfloat16(b);
        i32x4 swap = p < q, d = (i32x4)((((u32x4)p - (u32x4)q) ^ (u32x4)swap) - (u32x4)swap) ^ top, larger = d > most4;
        most4 = (d & larger) | (most4 & ~larger);
    }
    uint32_t found = 0;
    for (int k = 0; k < LANES; k++) {
        uint32_t d = (uint32_t)most4[k] ^ 0x80000000u;
        found = d > found ? d : found;
    }
    return found;
}

INLINE int64_t equal_bits(const void *x, const void *y, int type, int64_t at, int64_t n) {
    int64_t found = 0;
    if (type == FLOAT64) {
        const uint64_t *a = (const uint64_t *)x + at, *b = (const uint64_t *)y + at;
        for (int64_t i = 0; i < n; i++) found += a[i] == b[i];
    } else if (type == FLOAT32) {
        const uint32_t *a = (const uint32_t *)x + at, *b = (const uint32_t *)y + at;
        int32_t some = 0;
        for (int64_t i = 0; i < n; i++) some += a[i] == b[i];
        found = some;
    } else if (type == TABLE8) {
        const uint8_t *a = (const uint8_t *)x + at, *b = (const uint8_t *)y + at;
        for (int64_t i = 0; i < n; i++) found += a[i] == b[i];
    } else {
        const uint16_t *a = (const uint16_t *)x + at, *b = (const uint16_t *)y + at;
        int32_t some = 0;
        for (int64_t i = 0; i < n; i++) some += a[i] == b[i];
        found = some;
    }
    return found;
}

INLINE uint64_t joined(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

/* The sums of the lower and of the higher words of two hashes. */
INLINE uint64_t add_hash(uint64_t a, uint64_t b) {
    return joined((uint32_t)a + (uint32_t)b, (uint32_t)(a >> 32) + (uint32_t)(b >> 32));
}

/* Both words of the hash of four doubles. */
INLINE u32x8 mix64(u64x4 bits) {
    u32x8 words = (u32x8)(bits ^ bits >> 32) * PRIME32_1;
    words ^= (u32x8)((u64x4)words << 32);
    words = (words ^ words >> 15) * PRIME32_2;
    words ^= (u32x8)((u64x4)words >> 32);
    return words ^ words >> 13;
}

/* The hash of float32 numbers, as in numpy_kernel.py; zeros add nothing. */
INLINE uint64_t hash_floats(const float *values, int64_t n, int finite) {
    u32x8 low = {0}, high = {0};
    int64_t whole = n & ~(int64_t)7;
    float rest[8] = {0};
    memcpy(rest, values + whole, (size_t)(n - whole) * sizeof *rest);
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 v;
        memcpy(&v, i < whole ? values + i : rest, sizeof v);
        u32x8 word = (u32x8)(v + 0.0f); /* -0 is 0 */
        if (!finite) {
            u32x8 nan = (u32x8)(v != v);
            word = (word & ~nan) | (nan & NAN32);
        }
        word *= PRIME32_1;
        word = (word ^ word >> 16) * PRIME32_2;
        u32x8 top = word >> 15;
        low += word ^ top;
        high += word * top;
    }
    uint32_t sums[2] = {0, 0};
    for (int k = 0; k < 8; k++) {
        sums[0] += low[k];
        sums[1] += high[k];
    }
    return joined(sums[0], sums[1]);
}

/* The hash of doubles, padded with zeros. Numbers that are not exact in float32 count as zeros in the first sum and are
 * added in the second. */
INLINE uint64_t hash_doubles(const double *wide, float *narrow, int64_t n, int finite) {
    u32x8 words = {0}; /* lower and higher alternate */
    i64x4 exact = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        f64x4 v;
        memcpy(&v, wide + i, sizeof v);
        f32x4 short_v = __builtin_convertvector(v, f32x4);
        i64x4 beyond = (__builtin_convertvector(short_v, f64x4) != v) & (v == v);
        short_v = (f32x4)((i32x4)short_v & ~__builtin_convertvector(beyond, i32x4));
        memcpy(narrow + i, &short_v, sizeof short_v);
        words += mix64((u64x4)v) & (u32x8)beyond;
        exact |= ~beyond;
    }
    uint32_t low = words[0] + words[2] + words[4] + words[6], high = words[1] + words[3] + words[5] + words[7];
    uint64_t hash = joined(low, high);
    return exact[0] | exact[1] | exact[2] | exact[3] ? add_hash(hash, hash_floats(narrow, n, finite)) : hash;
}

INLINE uint64_t hash_tile(const void *data, int type, int64_t at, int64_t n, const double *wide, int finite) {
    float narrow[TILE + LANES];
    if (type == FLOAT32) return hash_floats((const float *)data + at, n, finite);
    if (type == FLOAT64) return hash_doubles(wide, narrow, n, finite);
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)wide[i];
    return hash_floats(narrow, n, finite);
}

typedef struct {
    f64x4 low, high, total, squares;
} side_lanes_t;

INLINE void side_step(side_lanes_t *lanes, const double *wide) {
    f64x4 v;
    memcpy(&v, wide, sizeof v);
    lanes->low = choose(v < lanes->low, v, lanes->low);
    lanes->high = choose(v > lanes->high, v, lanes->high);
    lanes->total += v;
    lanes->squares += v * v;
}

/* Add two times four lanes and the elements from `whole` on. Returns 1 if all are finite, else the result is void. */
INLINE int sum_side(side_t *side, const side_lanes_t *a, const side_lanes_t *b, const double *wide, int64_t whole,
                    int64_t n) {
    double least = smallest_of(choose(a->low < b->low, a->low, b->low));
    double most = largest_of(choose(a->high > b->high, a->high, b->high));
    double sum = added(a->total + b->total), square = added(a->squares + b->squares);
    for (int64_t i = whole; i < n; i++) {
        least = wide[i] < least ? wide[i] : least;
        most = wide[i] > most ? wide[i] : most;
        sum += wide[i];
        square += wide[i] * wide[i];
    }
    *side = (side_t){.minimum = least, .maximum = most, .total = sum, .squares = square};
    return fabs(sum) <= 0x1.fffffffffffffp1023;
}

/* Measure one side of a tile. Returns 1 if all of it is finite. */
INLINE int finite_side(side_t *side, const double *wide, int64_t n) {
    int64_t whole = n & ~(int64_t)(2 * LANES - 1);
    side_lanes_t a = {splat(INFINITY), splat(-INFINITY), splat(0.0), splat(0.0)}, b = a;
    for (int64_t i = 0; i < whole; i += 2 * LANES) {
        side_step(&a, wide + i);
        side_step(&b, wide + i + LANES);
    }
    return sum_side(side, &a, &b, wide, whole, n);
}

INLINE void add_side(side_t *side, const side_t *tile) {
    if (!(side->minimum <= tile->minimum)) side->minimum = tile->minimum;
    if (!(side->maximum >= tile->maximum)) side->maximum = tile->maximum;
    side->total += tile->total;
    side->squares += tile->squares;
    side->hash = add_hash(side->hash, tile->hash);
}

/* A tile with equal bits on both sides and nothing to exclude. */
INLINE void add_equal(moments_t *m, double squares, int64_t n) {
    m->compared += n;
    m->equal += n;
    m->xx += squares;
    m->yy += squares;
    m->xy += squares;
    m->below_5e3 += n;
    m->histogram[0] += n;
}

INLINE int among(double value, const double *values, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        if (value == values[k]) return 1;
    return 0;
}

/* Whether both sides have the same mask. */
INLINE int is_mask(double x, double y, const bars_t *bars) {
    if (x == y && (x <= bars->mask_bound || among(x, bars->masks, bars->mask_count))) return 1;
    return among(x, bars->x_masks, bars->x_count) && among(y, bars->y_masks, bars->y_count);
}

/* The bits that float32 numbers need, as in model/moments.py. Once a value needs more than 16-bit types have, the result
 * is final, so that most tensors are examined for one tile only. */
INLINE void count_bits(side_t *side, const float *values, int64_t n) {
    const u32x8 fraction = (u32x8){0} + FRACTION;
    const f32x8 most = (f32x8){0} + INFINITY;
    u32x8 seen = {0};
    i32x8 nonzero = {0}, full_8 = {0}, full_11 = {0};
    f32x8 least = most;
    int64_t whole = n & ~(int64_t)7;
    float rest[8] = {0};
    memcpy(rest, values + whole, (size_t)(n - whole) * sizeof *rest);
    if (side->bits > SHORT_BITS) return;
    for (int64_t i = 0; i < n; i += 8) {
        u32x8 words;
        memcpy(&words, i < whole ? values + i : rest, sizeof words);
        seen |= words & fraction;
    }
    uint32_t all = 0;
    for (int k = 0; k < 8; k++) all |= seen[k];
    if (all & BEYOND_SHORT) {
        side->bits = SINGLE_BITS;
        side->last_bit = 0.0;
        side->nonzero = side->full_8 = side->full_11 = -INFINITY;
        return;
    }
    for (int64_t i = 0; i < n; i += 8) {
        u32x8 words;
        memcpy(&words, i < whole ? values + i : rest, sizeof words);
        u32x8 size = words & 0x7fffffffu;
        f32x8 value = (f32x8)size;
        i32x8 zero = size == 0, power = (size & fraction) == 0;
        f32x8 last = value - (f32x8)(size & (size - 1)); /* for a power of two, the last bit is the value */
        i32x8 bits = ((i32x8)value & power) | ((i32x8)last & ~power);
        last = (f32x8)((bits & ~zero) | ((i32x8)most & zero));
        i32x8 less = last < least;
        least = (f32x8)(((i32x8)last & less) | ((i32x8)least & ~less));
        nonzero -= ~zero;
        full_8 -= (size & PLACE_8) != 0;
        full_11 -= (size & PLACE_11) != 0;
    }
    for (int k = 0; k < 8; k++) {
        side->nonzero += nonzero[k];
        side->full_8 += full_8[k];
        side->full_11 += full_11[k];
        if (least[k] < side->last_bit) side->last_bit = least[k];
    }
    int64_t needed = all ? SINGLE_BITS - __builtin_ctz(all) : side->nonzero > 0;
    side->bits = needed > side->bits ? needed : side->bits;
}

/* Buffers for one tile. */
typedef struct {
    float narrow[TILE];
    _Alignas(64) double x[TILE + 8], y[TILE + 8], relative[TILE + 8], size[TILE + 8];
    int16_t places[TILE];
} scratch_t;

INLINE int64_t place_of(const double *values, int64_t n, double wanted, const int16_t *places) {
    int64_t i = 0;
    while (i < n - 1 && values[i] != wanted) i++;
    return places ? places[i] : i;
}

/* How many are at least 0.005. */
INLINE int64_t count_5e3(const double *relatives, int64_t whole) {
    i64x4 found = {0};
    for (int64_t i = 0; i < whole; i += LANES) {
        f64x4 v;
        memcpy(&v, relatives + i, sizeof v);
        found -= v >= 0.005;
    }
    return counted(found);
}

typedef struct {
    f64x4 xy, d, size, dd, most, farthest, relative;
    i64x4 equal, zero;
} pair_lanes_t;

INLINE void pair_step(pair_lanes_t *lanes, f64x4 floor, const double *x, const double *y, double *sizes,
                      double *relatives, int tiny) {
    f64x4 a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, y, sizeof b);
    f64x4 d = a - b, size = absolute(d), magnitude = absolute(b);
    f64x4 relative = size / choose(magnitude > floor, magnitude, floor);
    lanes->xy += a * b;
    lanes->d += d;
    lanes->size += size;
    lanes->dd += size * size;
    lanes->relative += relative;
    lanes->equal -= size == 0.0;
    if (tiny) lanes->zero -= relative == 0.0;
    lanes->most = choose(size > lanes->most, size, lanes->most);
    lanes->farthest = choose(relative > lanes->farthest, relative, lanes->farthest);
    memcpy(sizes, &size, sizeof size);
    memcpy(relatives, &relative, sizeof relative);
}

/* How many relative errors reach each of the edges; nonnegative numbers have the order of their bits. */
INLINE void reached_edges(int64_t *reached, const double *relatives, int64_t whole, const double *edges) {
    i64x4 found[EDGES] = {{0}};
    for (int64_t i = 0; i < whole; i += LANES) {
        i64x4 v;
        memcpy(&v, relatives + i, sizeof v);
        for (int k = 0; k < EDGES; k++) found[k] -= v >= (i64x4)splat(edges[k]);
    }
    for (int k = 0; k < EDGES; k++) reached[k] = counted(found[k]);
}

/* How many errors exceed atol + rtol·|golden|: none if no error exceeds atol. */
INLINE int64_t count_outside(const double *sizes, const double *golden, int64_t whole, const bars_t *bars) {
    f64x4 rtol = splat(bars->rtol), atol = splat(bars->atol);
    i64x4 found = {0};
    for (int64_t i = 0; i < whole; i += LANES) {
        f64x4 size, v;
        memcpy(&size, sizes + i, sizeof size);
        memcpy(&v, golden + i, sizeof v);
        found -= size > atol + rtol * absolute(v);
    }
    return counted(found);
}

#if AVX512_BUILT
#include "avx512.h"
#else
#define side_512(side, into, data, type, at, n) (*(side) = (side_t){0}, 0) /* bars_t.avx512 is never set */
#define ulp_512(x, y, type, at, n, equal) 0
#define reached_512(reached, relatives, whole, edges)
#define all_pairs_512(lanes, bars, room, whole, tiny)
#define has_avx512() 0
#endif

int32_t npucmp_avx512(void) { return has_avx512(); }

/* Bins of the relative errors of a tile: how many reach the lower edge of a bin, from the highest reached bin down,
 * until all nonzero errors are counted. They lie in a few decades; comparing them with these edges in vectors takes a
 * third of the time of finding the bin of each error. */
INLINE void count_decades(moments_t *m, const double *relatives, int64_t whole, int64_t nonzero, double most,
                          const bars_t *bars) {
    int bin = BINS - 1;
    while (bin > 1 && !(most >= bars->edges[bin])) bin--;
    for (int64_t above = 0; above < nonzero; bin -= EDGES) {
        double lower[EDGES];
        int64_t reached[EDGES] = {0};
        for (int k = 0; k < EDGES; k++) lower[k] = bars->edges[bin > k ? bin - k : 0];
        if (bars->avx512) reached_512(reached, relatives, whole, lower);
        else reached_edges(reached, relatives, whole, lower);
        for (int k = 0; k < EDGES && bin > k; k++) {
            m->histogram[bin - k] += reached[k] - above;
            above = reached[k];
        }
    }
}

/* Finite values without masks: a tile, or the compared part of one, whose positions are then in `places`. */
INLINE void measure_finite(moments_t *m, scratch_t *room, double xx, double yy, int64_t at, int64_t n,
                           const int16_t *places, const bars_t *bars) {
    const double *wide_x = room->x, *wide_y = room->y;
    double *relatives = room->relative, *sizes = room->size;
    int64_t whole = (n + LANES - 1) & ~(int64_t)(LANES - 1);
    pair_lanes_t lanes = {0};
    f64x4 floor = splat(bars->floor);
    int tiny = bars->x_type == FLOAT64 || bars->y_type == FLOAT64;
    if (bars->avx512) all_pairs_512(&lanes, bars, room, whole, tiny);
    else if (tiny)
        for (int64_t i = 0; i < whole; i += LANES) /* zeros beyond n add nothing to any sum */
            pair_step(&lanes, floor, wide_x + i, wide_y + i, sizes + i, relatives + i, 1);
    else { /* a nonzero error stays nonzero after the division */
        for (int64_t i = 0; i < whole; i += LANES)
            pair_step(&lanes, floor, wide_x + i, wide_y + i, sizes + i, relatives + i, 0);
        lanes.zero = lanes.equal;
    }
    int64_t beyond = whole - n; /* the zeros were counted too */
    m->compared += n;
    m->xx += xx;
    m->yy += yy;
    m->xy += added(lanes.xy);
    m->sum_d += added(lanes.d);
    m->sum_abs += added(lanes.size);
    m->sum_dd += added(lanes.dd);
    m->sum_rel += added(lanes.relative);
    double size = largest_of(lanes.most), relative = largest_of(lanes.farthest);
    if (size > bars->atol) m->outside += count_outside(sizes, wide_y, whole, bars);
    if (size > m->max_abs) m->max_abs = size, m->max_abs_index = at + place_of(sizes, n, size, places);
    if (relative > m->max_rel) m->max_rel = relative, m->max_rel_index = at + place_of(relatives, n, relative, places);
    if (!bars->same_type) m->equal += counted(lanes.equal) - beyond;
    m->below_5e3 += n - (relative >= 0.005 ? count_5e3(relatives, whole) : 0);
    int64_t zeros = counted(lanes.zero);
    m->histogram[0] += zeros - beyond;
    count_decades(m, relatives, whole, whole - zeros, relative, bars);
}

/* Add a tile with NaN or Inf to one side. */
INLINE void add_any(side_t *side, const double *wide, int64_t n, uint64_t hash) {
    i64x4 nan = {0}, posinf = {0}, neginf = {0};
    f64x4 low = splat(INFINITY), high = splat(-INFINITY), total = splat(0.0), squares = splat(0.0);
    for (int64_t i = 0; i < n; i += LANES) { /* zeros beyond n are treated as uncounted NaN */
        f64x4 v;
        memcpy(&v, wide + i, sizeof v);
        i64x4 there = (i64x4){i, i + 1, i + 2, i + 3} < n, fine = (absolute(v) <= 0x1.fffffffffffffp1023) & there;
        f64x4 value = choose(fine, v, splat(0.0));
        nan -= (v != v) & there;
        posinf -= v == INFINITY;
        neginf -= v == -INFINITY;
        low = choose(fine & (v < low), v, low);
        high = choose(fine & (v > high), v, high);
        total += value;
        squares += value * value;
    }
    side_t tile = {.minimum = smallest_of(low), .maximum = largest_of(high), .total = added(total),
                   .squares = added(squares)};
    int64_t count[3] = {counted(nan), counted(posinf), counted(neginf)};
    side->nan += count[0];
    side->posinf += count[1];
    side->neginf += count[2];
    if (count[0] + count[1] + count[2] < n) add_side(side, &tile);
    side->hash = add_hash(side->hash, hash);
}

INLINE double squares_of(const double *values, int64_t n) {
    f64x4 sum = splat(0.0);
    for (int64_t i = 0; i < n; i += LANES) {
        f64x4 v;
        memcpy(&v, values + i, sizeof v);
        sum += v * v;
    }
    return added(sum);
}

/* Move the compared positions of a tile together, followed by zeros; `low` if masks may exist. */
INLINE int64_t gather(moments_t *m, scratch_t *room, int64_t n, int low, const bars_t *bars) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = room->x[i], b = room->y[i];
        int finite = (fabs(a) <= 0x1.fffffffffffffp1023) & (fabs(b) <= 0x1.fffffffffffffp1023), keep = finite;
        if (low && finite && a <= bars->highest_mask && b <= bars->highest_mask && is_mask(a, b, bars)) {
            m->masked++;
            m->outside += fabs(a - b) > bars->atol + bars->rtol * fabs(b);
            if (!bars->same_type) m->equal += a == b;
            keep = 0;
        }
        if (!finite) m->mismatched += !((isnan(a) && isnan(b)) || a == b);
        room->x[kept] = a;
        room->y[kept] = b;
        room->places[kept] = (int16_t)i;
        kept += keep;
    }
    for (int64_t i = kept; i < kept + LANES; i++) room->x[i] = room->y[i] = 0.0;
    return kept;
}

/* Largest distance after gather(). */
INLINE uint64_t gathered_ulp(const void *x, const void *y, const scratch_t *room, int64_t at, int64_t n,
                             const bars_t *bars) {
    bars_t same = *bars;
    if (bars->ulp != SAME) return tile_ulp(x, y, room->x, room->y, 0, n, bars);
    switch (bars->x_type) { /* rounding a value to its own type is exact */
    case FLOAT64: /* includes zeros beyond n, to use whole vectors */
        n = (n + LANES - 1) & ~(int64_t)(LANES - 1);
        return ulp64((const uint64_t *)(const void *)room->x, (const uint64_t *)(const void *)room->y, n);
    case FLOAT32: same.ulp = TO_FLOAT32; break;
    case FLOAT16: same.ulp = TO_FLOAT16; break;
    case BFLOAT16: same.ulp = TO_BFLOAT16; break;
    default: {
        uint64_t most = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t place = at + room->places[i];
            uint64_t d = apart(ordered(bits_at(x, TABLE8, place), 8), ordered(bits_at(y, TABLE8, place), 8));
            most = d > most ? d : most;
        }
        return most;
    }
    }
    return tile_ulp(x, y, room->x, room->y, 0, n, &same);
}

static void begin(moments_t *m) {
    memset(m, 0, sizeof *m);
    m->max_abs_index = m->max_rel_index = -1;
    m->max_abs_exact.high = m->max_ulp.high = NO_INTEGER;
    m->target.minimum = m->target.maximum = m->golden.minimum = m->golden.maximum = NAN;
    m->target.last_bit = m->golden.last_bit = INFINITY;
}

#define JOIN(type, name, merge) merge(name)
#define SUM(name) total->name += block->name;
#define LEAST(name) if (block->name < total->name || total->name != total->name) total->name = block->name;
#define MOST(name) if (block->name > total->name || total->name != total->name) total->name = block->name;
#define MOST_WIDE(name) total->name = most_wide(total->name, block->name);
#define PLACE(name) /* join() sets it before the field to which it belongs */
#define WORD_SUMS(name) total->name = add_hash(total->name, block->name);
#define SUMS(name) for (int k = 0; k < BINS; k++) total->name[k] += block->name[k];
#define HALF(name) join_sides(&total->name, &block->name);

static wide_t most_wide(wide_t a, wide_t b) {
    if (a.high == NO_INTEGER || b.high == NO_INTEGER) return a.high == NO_INTEGER ? b : a;
    return b.high > a.high || (b.high == a.high && b.low > a.low) ? b : a;
}

static void join_sides(side_t *total, const side_t *block) { SIDE(JOIN) }

/* Merge a block that begins at element `start`, as in merge.py. If maxima are equal, the first is kept. */
static void join(moments_t *total, const moments_t *block, int64_t start) {
    if (block->max_abs > total->max_abs) total->max_abs_index = start + block->max_abs_index;
    if (block->max_rel > total->max_rel) total->max_rel_index = start + block->max_rel_index;
    MOMENTS(JOIN)
}

/* count_bits of the values of a float64 or float32 tensor as doubles; nothing for other types. The result is final once
 * a value needs more bits than the narrower types have. */
INLINE void count_wide(side_t *side, int type, const double *wide, float *narrow, int64_t n) {
    if (type > FLOAT32 || side->bits > (type == FLOAT64 ? SINGLE_BITS : SHORT_BITS)) return;
    int32_t rounds = 0;
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = (float)wide[i];
        rounds |= (double)narrow[i] != wide[i];
    }
    if (rounds) {
        side->bits = DOUBLE_BITS;
        side->last_bit = 0.0;
        side->nonzero = side->full_8 = side->full_11 = -INFINITY;
        return;
    }
    count_bits(side, narrow, n);
}

/* count_bits of values of float32 or float64 that are equal on both sides. */
INLINE void count_equal(moments_t *m, int type, const double *wide, float *narrow, int64_t n) {
    int most = type == FLOAT64 ? SINGLE_BITS : SHORT_BITS;
    if (m->target.bits > most && m->golden.bits > most) return;
    side_t tile = {.minimum = NAN, .maximum = NAN, .last_bit = INFINITY};
    count_wide(&tile, type, wide, narrow, n);
    join_sides(&m->target, &tile);
    join_sides(&m->golden, &tile);
}

INLINE void farther_of(moments_t *m, uint64_t ulp) { m->max_ulp.low = ulp > m->max_ulp.low ? ulp : m->max_ulp.low; }

/* A tile as doubles, its finite_side() and its hash. */
INLINE int widen_side(side_t *side, double *into, const void *data, int type, int64_t at, int64_t n,
                      const float *table, int avx512) {
    if (!avx512 || !in_float32(type)) {
        widen(into, data, type, at, n, table);
        if (finite_side(side, into, n)) {
            side->hash = hash_tile(data, type, at, n, into, 1);
            return 1;
        }
    } else if (side_512(side, into, data, type, at, n)) return 1;
    side->hash = hash_tile(data, type, at, n, into, 0);
    return 0;
}

/* Both sides begin some bytes behind an address, as in a file that was read whole. */
VERSIONS void npucmp_measure(const char *x_data, int64_t x_at, const char *y_data, int64_t y_at, int64_t n, int64_t start,
                             const bars_t *bars, moments_t *total) {
    const void *x = x_data + x_at, *y = y_data + y_at;
    scratch_t room;
    moments_t block, *out = &block;
    size_t width = width_of(bars->x_type);
    int together = bars->avx512 && bars->ulp == SAME && in_float32(bars->x_type); /* equal bits and distances */
    begin(out);
    if (total->target.bits > SHORT_BITS) out->target.bits = total->target.bits; /* the result may be final */
    if (total->golden.bits > SHORT_BITS) out->golden.bits = total->golden.bits;
    out->elements = n;
    if (bars->ulp) out->max_ulp.high = 0;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t some = n - at < TILE ? n - at : TILE;
        side_t target, golden;
        int fine = widen_side(&target, room.x, x, bars->x_type, at, some, bars->x_table, bars->avx512);
        int low = !fine || target.minimum <= bars->highest_mask;
        if (!low && bars->same_type &&
            memcmp((const uint8_t *)x + at * width, (const uint8_t *)y + at * width, some * width) == 0) {
            add_side(&out->target, &target);
            add_side(&out->golden, &target);
            add_equal(out, target.squares, some);
            if (bars->x_type <= FLOAT32) count_equal(out, bars->x_type, room.x, room.narrow, some);
            continue;
        }
        fine &= widen_side(&golden, room.y, y, bars->y_type, at, some, bars->y_table, bars->avx512);
        uint64_t ulp = together ? ulp_512(x, y, bars->x_type, at, some, &out->equal) : 0;
        if (bars->same_type && !together) out->equal += equal_bits(x, y, bars->x_type, at, some);
        if (fine && !(low && golden.minimum <= bars->highest_mask)) {
            add_side(&out->target, &target);
            add_side(&out->golden, &golden);
            if (bars->ulp) farther_of(out, together ? ulp : tile_ulp(x, y, room.x, room.y, at, some, bars));
            measure_finite(out, &room, target.squares, golden.squares, at, some, NULL, bars);
            count_wide(&out->target, bars->x_type, room.x, room.narrow, some);
            count_wide(&out->golden, bars->y_type, room.y, room.narrow, some);
        } else {
            add_any(&out->target, room.x, some, target.hash);
            add_any(&out->golden, room.y, some, golden.hash);
            int64_t kept = gather(out, &room, some, low, bars);
            if (bars->ulp) farther_of(out, gathered_ulp(x, y, &room, at, kept, bars));
            double xx = squares_of(room.x, kept), yy = squares_of(room.y, kept);
            measure_finite(out, &room, xx, yy, at, kept, room.places, bars);
            count_wide(&out->target, bars->x_type, room.x, room.narrow, kept);
            count_wide(&out->golden, bars->y_type, room.y, room.narrow, kept);
        }
    }
    for (int k = 0; k < BELOW_1E3; k++) block.below_1e3 += block.histogram[k];
    join(total, &block, start);
}

VERSIONS void npucmp_side(const void *x, int64_t n, int32_t type, const float *table, side_t *out) {
    _Alignas(64) double wide[TILE + 8];
    memset(out, 0, sizeof *out);
    out->minimum = out->maximum = NAN;
    out->last_bit = INFINITY;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t some = n - at < TILE ? n - at : TILE;
        side_t tile;
        if (widen_side(&tile, wide, x, type, at, some, table, 0)) add_side(out, &tile);
        else add_any(out, wide, some, tile.hash);
    }
}

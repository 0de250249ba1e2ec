/* The kernel of numpy_kernel.py for pairs of floats, in one pass over tiles that stay in the first-level cache.
 *
 * Called with pointers and lengths that Python has checked; allocates nothing, keeps no state, never writes but to its
 * result. All sums are kept in eight double lanes and added up in a fixed order, and products are never fused with
 * sums, so that the result is the same on every machine and for every instruction set. A tile in which everything is
 * finite and nothing can be a mask is measured with vectors; any other one element by element.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TILE 1024
#define LANES 8
#define BINS 24

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define VERSIONS __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define VERSIONS
#endif
#define INLINE static inline __attribute__((always_inline))

typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

enum { FLOAT64 = 0, FLOAT32 = 1, FLOAT16 = 2, BFLOAT16 = 3, TABLE8 = 4 };
enum { NO_ULP = 0, SAME = 1, TO_FLOAT32 = 2, TO_FLOAT16 = 3, TO_BFLOAT16 = 4 };

typedef struct {
    int64_t nan, posinf, neginf;
    double minimum, maximum, total, squares;
} side_t;

typedef struct {
    int64_t count, compared, masked, mismatched, equal;
    double xx, yy, xy, sum_d, sum_abs, sum_dd, max_abs, max_rel, sum_rel;
    int64_t max_abs_index, max_rel_index, below_1e3, below_5e3, outside;
    uint64_t max_ulp;
    int64_t histogram[BINS];
    side_t target, golden;
} moments_t;

typedef struct {
    int32_t x_type, y_type, ulp, same_type;
    double floor, rtol, atol, x_largest, y_largest, highest_mask, mask_rounding;
    const double *masks;      /* values that stand for minus infinity, as positive numbers */
    int64_t mask_count;
    const int8_t *low;        /* bin of the lower end of each binary exponent, 2048 of them */
    const double *edges;      /* upper edge of each bin */
    const float *x_table, *y_table; /* values of 8-bit types, 256 of them */
} bars_t;

INLINE f64x8 splat(double value) { return (f64x8){value, value, value, value, value, value, value, value}; }
INLINE f64x8 absolute(f64x8 v) { return (f64x8)((u64x8)v & 0x7fffffffffffffffULL); }
INLINE f64x8 choose(i64x8 which, f64x8 a, f64x8 b) {
    return (f64x8)(((i64x8)a & which) | ((i64x8)b & ~which));
}

INLINE double added(f64x8 v) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}
INLINE int64_t counted(i64x8 v) { return v[0] + v[1] + v[2] + v[3] + v[4] + v[5] + v[6] + v[7]; }
INLINE double largest_of(f64x8 v) {
    double found = v[0];
    for (int i = 1; i < LANES; i++) found = v[i] > found ? v[i] : found;
    return found;
}
INLINE double smallest_of(f64x8 v) { return -largest_of(-v); }

/* float16 to float32: the exponent is moved by a product, which also makes subnormal numbers right */
INLINE f32x8 from_float16(u16x8 raw) {
    u32x8 wide = __builtin_convertvector(raw, u32x8);
    u32x8 magnitude = (wide & 0x7fff) << 13;
    f32x8 scaled = (f32x8)magnitude * 0x1p112f;
    i32x8 special = magnitude >= 0x0f800000u; /* NaN and Inf keep the highest exponent */
    u32x8 bits = ((u32x8)scaled & ~(u32x8)special) | ((magnitude | 0x7f800000u) & (u32x8)special);
    return (f32x8)(bits | ((wide & 0x8000) << 16));
}

INLINE f64x8 load8(const void *data, int type, int64_t at, const float *table) {
    switch (type) {
    case FLOAT64: {
        f64x8 v;
        memcpy(&v, (const double *)data + at, sizeof v);
        return v;
    }
    case FLOAT32: {
        f32x8 v;
        memcpy(&v, (const float *)data + at, sizeof v);
        return __builtin_convertvector(v, f64x8);
    }
    case FLOAT16: {
        u16x8 v;
        memcpy(&v, (const uint16_t *)data + at, sizeof v);
        return __builtin_convertvector(from_float16(v), f64x8);
    }
    case BFLOAT16: {
        u16x8 v;
        memcpy(&v, (const uint16_t *)data + at, sizeof v);
        return __builtin_convertvector((f32x8)(__builtin_convertvector(v, u32x8) << 16), f64x8);
    }
    default: {
        const uint8_t *raw = (const uint8_t *)data + at;
        return (f64x8){table[raw[0]], table[raw[1]], table[raw[2]], table[raw[3]],
                       table[raw[4]], table[raw[5]], table[raw[6]], table[raw[7]]};
    }
    }
}

INLINE size_t width_of(int type) { return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : type == TABLE8 ? 1 : 2; }

/* A tile as doubles; the last group of eight is filled up with zeros. */
INLINE void widen(double *into, const void *data, int type, int64_t at, int64_t n, const float *table) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        f64x8 v = load8(data, type, at + i, table);
        memcpy(into + i, &v, sizeof v);
    }
    if (i < n) {
        uint8_t rest[64] = {0};
        size_t width = width_of(type);
        memcpy(rest, (const uint8_t *)data + (size_t)(at + i) * width, (size_t)(n - i) * width);
        f64x8 v = load8(rest, type, 0, table);
        memcpy(into + i, &v, sizeof v);
        for (int64_t k = n; k < i + LANES; k++) into[k] = 0.0;
    }
}

/* Integers in the order of the floats, neighbours one apart, both zeros 0. */
INLINE int64_t ordered(uint64_t bits, int width) {
    int64_t sign = (int64_t)1 << (width - 1);
    int64_t value = (int64_t)bits;
    int64_t magnitude = value & (sign - 1);
    return value & sign ? -magnitude : magnitude;
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

/* To the nearest float16, ties to even: below the normal range by adding a number whose last place is that of float16. */
INLINE uint64_t to_float16(float value) {
    uint32_t bits = float_bits(value), sign = bits & 0x80000000u, size = bits ^ sign, found;
    if (size >= 0x47800000u) {
        found = 0x7c00;
    } else if (size < 0x38800000u) {
        float moved;
        memcpy(&moved, &size, sizeof moved);
        found = float_bits(moved + 0.5f) - 0x3f000000u;
    } else {
        found = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1)) >> 13;
    }
    return found | sign >> 16;
}

INLINE uint64_t to_bfloat16(float value) {
    uint32_t bits = float_bits(value);
    return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

INLINE uint64_t distance(double x, double y, int ulp) {
    switch (ulp) {
    case TO_FLOAT32: return apart(ordered(float_bits((float)x), 32), ordered(float_bits((float)y), 32));
    case TO_FLOAT16: return apart(ordered(to_float16((float)x), 16), ordered(to_float16((float)y), 16));
    case TO_BFLOAT16: return apart(ordered(to_bfloat16((float)x), 16), ordered(to_bfloat16((float)y), 16));
    default: return 0;
    }
}

/* Largest distance over a tile of finite values. */
INLINE uint64_t tile_ulp(const void *x, const void *y, const double *wide_x, const double *wide_y, int64_t at, int64_t n,
                         const bars_t *bars) {
    uint64_t most = 0;
    if (bars->ulp == SAME && bars->x_type == FLOAT32) {
        const int32_t *a = (const int32_t *)x + at, *b = (const int32_t *)y + at;
        int64_t found = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t p = a[i] < 0 ? -(int64_t)(a[i] & 0x7fffffff) : a[i];
            int64_t q = b[i] < 0 ? -(int64_t)(b[i] & 0x7fffffff) : b[i];
            int64_t d = p > q ? p - q : q - p;
            found = d > found ? d : found;
        }
        return (uint64_t)found;
    }
    if (bars->ulp == SAME && (bars->x_type == FLOAT16 || bars->x_type == BFLOAT16)) {
        const int16_t *a = (const int16_t *)x + at, *b = (const int16_t *)y + at;
        int32_t found = 0;
        for (int64_t i = 0; i < n; i++) {
            int32_t p = a[i] < 0 ? -(a[i] & 0x7fff) : a[i];
            int32_t q = b[i] < 0 ? -(b[i] & 0x7fff) : b[i];
            int32_t d = p > q ? p - q : q - p;
            found = d > found ? d : found;
        }
        return (uint64_t)found;
    }
    if (bars->ulp == SAME) {
        int width = 8 * (int)width_of(bars->x_type);
        for (int64_t i = 0; i < n; i++) {
            uint64_t d = apart(ordered(bits_at(x, bars->x_type, at + i), width),
                               ordered(bits_at(y, bars->y_type, at + i), width));
            most = d > most ? d : most;
        }
        return most;
    }
    if (bars->ulp == TO_BFLOAT16 || bars->ulp == TO_FLOAT16 || bars->ulp == TO_FLOAT32) {
        for (int64_t i = 0; i < n; i++) {
            uint64_t d = distance(wide_x[i], wide_y[i], bars->ulp);
            most = d > most ? d : most;
        }
    }
    return most;
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

/* One side of a tile; 1 if all of it is finite, and only then are its figures right. */
INLINE int finite_side(side_t *side, const double *wide, int64_t n) {
    int64_t whole = n & ~(int64_t)(LANES - 1);
    f64x8 low = splat(INFINITY), high = splat(-INFINITY), total = splat(0.0), squares = splat(0.0);
    i64x8 fine = (i64x8){-1, -1, -1, -1, -1, -1, -1, -1};
    for (int64_t i = 0; i < whole; i += LANES) {
        f64x8 v;
        memcpy(&v, wide + i, sizeof v);
        fine &= absolute(v) <= 0x1.fffffffffffffp1023;
        low = choose(v < low, v, low);
        high = choose(v > high, v, high);
        total += v;
        squares += v * v;
    }
    double least = smallest_of(low), most = largest_of(high), sum = added(total), square = added(squares);
    int good = counted(fine) == -LANES;
    for (int64_t i = whole; i < n; i++) {
        good &= fabs(wide[i]) <= 0x1.fffffffffffffp1023;
        least = wide[i] < least ? wide[i] : least;
        most = wide[i] > most ? wide[i] : most;
        sum += wide[i];
        square += wide[i] * wide[i];
    }
    *side = (side_t){.minimum = least, .maximum = most, .total = sum, .squares = square};
    return good;
}

INLINE void add_side(side_t *side, const side_t *tile) {
    if (!(side->minimum <= tile->minimum)) side->minimum = tile->minimum;
    if (!(side->maximum >= tile->maximum)) side->maximum = tile->maximum;
    side->total += tile->total;
    side->squares += tile->squares;
}

/* A tile of the same bits on both sides, with nothing to leave out. */
INLINE void add_equal(moments_t *m, double squares, int64_t n) {
    m->compared += n;
    m->equal += n;
    m->xx += squares;
    m->yy += squares;
    m->xy += squares;
    m->below_1e3 += n;
    m->below_5e3 += n;
    m->histogram[0] += n;
}

INLINE void add_any(side_t *side, double value) {
    if (isnan(value)) side->nan++;
    else if (isinf(value)) *(value > 0 ? &side->posinf : &side->neginf) += 1;
    else {
        if (!(side->minimum <= value)) side->minimum = value;
        if (!(side->maximum >= value)) side->maximum = value;
        side->total += value;
        side->squares += value * value;
    }
}

INLINE int is_mask(double value, double largest, const bars_t *bars) {
    if (value <= -largest / 2) return 1;
    for (int64_t k = 0; k < bars->mask_count; k++) {
        double mask = bars->masks[k];
        if (mask <= largest && fabs(value + mask) <= mask * bars->mask_rounding) return 1;
    }
    return 0;
}

INLINE int bin_of(double relative, const bars_t *bars) {
    if (relative == 0.0) return 0;
    uint64_t bits;
    memcpy(&bits, &relative, sizeof bits);
    int bin = bars->low[bits >> 52 & 0x7ff];
    bin += relative >= bars->edges[bin];
    return bin < BINS ? bin : BINS - 1;
}

/* A tile with NaN, Inf or what may be masks, element by element. */
static void measure_any(moments_t *m, const void *x, const void *y, const double *wide_x, const double *wide_y, int64_t at,
                        int64_t n, const bars_t *bars) {
    for (int64_t i = 0; i < n; i++) {
        double a = wide_x[i], b = wide_y[i];
        add_any(&m->target, a);
        add_any(&m->golden, b);
        if (bars->same_type) m->equal += bits_at(x, bars->x_type, at + i) == bits_at(y, bars->y_type, at + i);
        if (!isfinite(a) || !isfinite(b)) {
            m->mismatched += !((isnan(a) && isnan(b)) || (a == b));
            continue;
        }
        if (a <= bars->highest_mask && b <= bars->highest_mask && is_mask(a, bars->x_largest, bars) &&
            is_mask(b, bars->y_largest, bars)) {
            m->masked++;
            continue;
        }
        double d = a - b, size = fabs(d), magnitude = fabs(b);
        double relative = size / (magnitude > bars->floor ? magnitude : bars->floor);
        m->compared++;
        m->xx += a * a;
        m->yy += b * b;
        m->xy += a * b;
        m->sum_d += d;
        m->sum_abs += size;
        m->sum_dd += size * size;
        m->sum_rel += relative;
        m->below_1e3 += relative < 0.001;
        m->below_5e3 += relative < 0.005;
        m->outside += size > bars->atol + bars->rtol * magnitude;
        m->histogram[bin_of(relative, bars)]++;
        if (!bars->same_type) m->equal += size == 0.0;
        if (size > m->max_abs) m->max_abs = size, m->max_abs_index = at + i;
        if (relative > m->max_rel) m->max_rel = relative, m->max_rel_index = at + i;
        uint64_t ulp = tile_ulp(x, y, wide_x + i, wide_y + i, at + i, 1, bars);
        m->max_ulp = ulp > m->max_ulp ? ulp : m->max_ulp;
    }
}

INLINE int64_t index_of(const double *values, int64_t n, double wanted) {
    for (int64_t i = 0; i < n; i++)
        if (values[i] == wanted) return i;
    return 0;
}

/* A tile of finite values without masks; `sizes` and `relatives` are room for |x-y| and its relative size. */
INLINE void measure_finite(moments_t *m, const void *x, const void *y, const double *wide_x, const double *wide_y,
                           int64_t at, int64_t n, const bars_t *bars, double *relatives,
                           double *sizes) {
    int64_t whole = (n + LANES - 1) & ~(int64_t)(LANES - 1);
    f64x8 xx = splat(0), yy = splat(0), xy = splat(0), sd = splat(0), sa = splat(0), sdd = splat(0), sr = splat(0);
    f64x8 most = splat(0), farthest = splat(0);
    f64x8 floor = splat(bars->floor), rtol = splat(bars->rtol), atol = splat(bars->atol);
    i64x8 one = {0}, five = {0}, outside = {0}, zero = {0};
    for (int64_t i = 0; i < whole; i += LANES) { /* zeros beyond n add nothing to any sum */
        f64x8 a, b;
        memcpy(&a, wide_x + i, sizeof a);
        memcpy(&b, wide_y + i, sizeof b);
        f64x8 d = a - b, size = absolute(d), magnitude = absolute(b);
        f64x8 relative = size / choose(magnitude > floor, magnitude, floor);
        xx += a * a;
        yy += b * b;
        xy += a * b;
        sd += d;
        sa += size;
        sdd += size * size;
        sr += relative;
        one -= relative < 0.001;
        five -= relative < 0.005;
        outside -= size > atol + rtol * magnitude;
        zero -= size == 0.0;
        most = choose(size > most, size, most);
        farthest = choose(relative > farthest, relative, farthest);
        memcpy(sizes + i, &size, sizeof size);
        memcpy(relatives + i, &relative, sizeof relative);
    }
    int64_t beyond = whole - n; /* those zeros were counted */
    m->compared += n;
    m->xx += added(xx);
    m->yy += added(yy);
    m->xy += added(xy);
    m->sum_d += added(sd);
    m->sum_abs += added(sa);
    m->sum_dd += added(sdd);
    m->sum_rel += added(sr);
    m->below_1e3 += counted(one) - beyond;
    m->below_5e3 += counted(five) - beyond;
    m->outside += counted(outside);
    double size = largest_of(most), relative = largest_of(farthest);
    if (size > m->max_abs) m->max_abs = size, m->max_abs_index = at + index_of(sizes, n, size);
    if (relative > m->max_rel) m->max_rel = relative, m->max_rel_index = at + index_of(relatives, n, relative);
    m->equal += bars->same_type ? equal_bits(x, y, bars->x_type, at, n) : counted(zero) - beyond;
    if (bars->ulp) {
        uint64_t ulp = tile_ulp(x, y, wide_x, wide_y, at, n, bars);
        m->max_ulp = ulp > m->max_ulp ? ulp : m->max_ulp;
    }
    int32_t bins[4][BINS + 8] = {{0}}; /* four, so that one addition need not wait for the one before */
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) bins[k][bin_of(relatives[i + k], bars)]++;
    for (; i < n; i++) bins[0][bin_of(relatives[i], bars)]++;
    for (int k = 0; k < BINS; k++) m->histogram[k] += bins[0][k] + bins[1][k] + bins[2][k] + bins[3][k];
}

static void begin(moments_t *m) {
    memset(m, 0, sizeof *m);
    m->max_abs_index = m->max_rel_index = -1;
    m->target.minimum = m->target.maximum = m->golden.minimum = m->golden.maximum = NAN;
}

VERSIONS void npucmp_measure(const void *x, const void *y, int64_t n, const bars_t *bars, moments_t *out) {
    _Alignas(64) double wide_x[TILE], wide_y[TILE], relative[TILE], sizes[TILE];
    size_t width = width_of(bars->x_type);
    begin(out);
    out->count = n;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t some = n - at < TILE ? n - at : TILE;
        side_t target, golden;
        widen(wide_x, x, bars->x_type, at, some, bars->x_table);
        int fine = finite_side(&target, wide_x, some);
        int low = target.minimum <= bars->highest_mask;
        if (fine && !low && bars->same_type &&
            memcmp((const uint8_t *)x + at * width, (const uint8_t *)y + at * width, some * width) == 0) {
            add_side(&out->target, &target);
            add_side(&out->golden, &target);
            add_equal(out, target.squares, some);
            continue;
        }
        widen(wide_y, y, bars->y_type, at, some, bars->y_table);
        fine = finite_side(&golden, wide_y, some) && fine;
        if (fine && !(low && golden.minimum <= bars->highest_mask)) {
            add_side(&out->target, &target);
            add_side(&out->golden, &golden);
            measure_finite(out, x, y, wide_x, wide_y, at, some, bars, relative, sizes);
        } else {
            measure_any(out, x, y, wide_x, wide_y, at, some, bars);
        }
    }
}

VERSIONS void npucmp_side(const void *x, int64_t n, int32_t type, const float *table, side_t *out) {
    _Alignas(64) double wide[TILE];
    memset(out, 0, sizeof *out);
    out->minimum = out->maximum = NAN;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t some = n - at < TILE ? n - at : TILE;
        widen(wide, x, type, at, some, table);
        side_t tile;
        if (finite_side(&tile, wide, some)) add_side(out, &tile);
        else
            for (int64_t i = 0; i < some; i++) add_any(out, wide[i]);
    }
}

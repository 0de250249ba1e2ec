/* The loops of native.c that take most of the time, for processors with AVX-512 (F, VL, DQ, BW).
 *
 * Every sum uses the same four lanes and the same order as in native.c, so that the results are bitwise equal. Loops
 * that only sum doubles stay 256 bits wide for that reason; 32 registers and masks make them shorter. native.c includes
 * this file. Callers must check has_avx512() first.
 */

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,popcnt")))

static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

/* The mask of up to sixteen elements of a tile from i on. */
AVX512 INLINE __mmask16 sixteen(int64_t i, int64_t n) { return (__mmask16)(n - i < 16 ? (1 << (n - i)) - 1 : 0xffff); }

/* hash_floats() of sixteen numbers; zeros add nothing. */
AVX512 INLINE void hash_512(__m512i bits, __m512i *low, __m512i *high) {
    const __m512i one = _mm512_set1_epi32((int32_t)PRIME32_1), two = _mm512_set1_epi32((int32_t)PRIME32_2);
    __m512i word = _mm512_maskz_mullo_epi32(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(INT32_MAX)), bits, one);
    word = _mm512_mullo_epi32(_mm512_xor_si512(word, _mm512_srli_epi32(word, 16)), two);
    __m512i top = _mm512_srli_epi32(word, 15);
    *low = _mm512_add_epi32(*low, _mm512_xor_si512(word, top));
    *high = _mm512_add_epi32(*high, _mm512_mullo_epi32(word, top));
}

/* The sum modulo 2^32; _mm512_reduce_add_epi32 is a sum of signed numbers. */
AVX512 INLINE uint32_t added_512(__m512i v) {
    uint32_t words[16], sum = 0;
    _mm512_storeu_si512(words, v);
    for (int k = 0; k < 16; k++) sum += words[k];
    return sum;
}

/* Up to sixteen elements of a type that float32 holds, as the words of floats; the words of float16 keep its own bits in
 * their upper half, so that their order is that of its values. */
AVX512 INLINE __m512i words_512(const void *data, int type, int64_t at, __mmask16 there) {
    if (type == FLOAT32) return _mm512_maskz_loadu_epi32(there, (const float *)data + at);
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, (const uint16_t *)data + at)), 16);
}

AVX512 INLINE __m512 floats_512(const void *data, int type, int64_t at, __mmask16 there) {
    if (type == FLOAT16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, (const uint16_t *)data + at));
    return (__m512)words_512(data, type, at, there);
}

typedef struct {
    __m256 low, high;
    __m512d total, squares;
} side_lanes_512_t;

AVX512 INLINE void side_step_512(side_lanes_512_t *lanes, double *into, __m256 v) {
    __m512d d = _mm512_cvtps_pd(v);
    lanes->low = _mm256_min_ps(v, lanes->low); /* the second operand if both are zeros, or one is NaN */
    lanes->high = _mm256_max_ps(v, lanes->high);
    lanes->total = _mm512_add_pd(lanes->total, d);
    lanes->squares = _mm512_add_pd(lanes->squares, _mm512_mul_pd(d, d));
    _mm512_storeu_pd(into, d);
}

/* widen(), finite_side() and, if all values are finite, hash_tile(). The two times four lanes are one vector here. */
AVX512 INLINE int side_512_of(side_t *side, double *into, const void *data, int type, int64_t at, int64_t n) {
    const int64_t whole = n & ~(int64_t)7;
    side_lanes_512_t lanes = {_mm256_set1_ps(INFINITY), _mm256_set1_ps(-INFINITY), _mm512_setzero_pd(),
                              _mm512_setzero_pd()};
    __m512i low_words = _mm512_setzero_si512(), high_words = low_words;
    int64_t done = 0;
    for (; done + 16 <= n; done += 16) {
        __m512 v = floats_512(data, type, at + done, 0xffff);
        hash_512((__m512i)v, &low_words, &high_words);
        side_step_512(&lanes, into + done, _mm512_castps512_ps256(v));
        side_step_512(&lanes, into + done + 8, _mm512_extractf32x8_ps(v, 1));
    }
    __m512 rest = floats_512(data, type, at + done, sixteen(done, n));
    hash_512((__m512i)rest, &low_words, &high_words);
    if (done < whole) {
        side_step_512(&lanes, into + done, _mm512_castps512_ps256(rest));
        rest = _mm512_castps256_ps512(_mm512_extractf32x8_ps(rest, 1));
    }
    _mm512_storeu_pd(into + whole, _mm512_cvtps_pd(_mm512_castps512_ps256(rest)));
    side_lanes_t a, b;
    __m512d lows = _mm512_cvtps_pd(lanes.low), highs = _mm512_cvtps_pd(lanes.high);
    a = (side_lanes_t){(f64x4)_mm512_castpd512_pd256(lows), (f64x4)_mm512_castpd512_pd256(highs),
                       (f64x4)_mm512_castpd512_pd256(lanes.total), (f64x4)_mm512_castpd512_pd256(lanes.squares)};
    b = (side_lanes_t){(f64x4)_mm512_extractf64x4_pd(lows, 1), (f64x4)_mm512_extractf64x4_pd(highs, 1),
                       (f64x4)_mm512_extractf64x4_pd(lanes.total, 1), (f64x4)_mm512_extractf64x4_pd(lanes.squares, 1)};
    int fine = sum_side(side, &a, &b, into, whole, n);
    side->hash = joined(added_512(low_words), added_512(high_words));
    return fine;
}

AVX512 static int side_512(side_t *side, double *into, const void *data, int type, int64_t at, int64_t n) {
    if (type == FLOAT32) return side_512_of(side, into, data, FLOAT32, at, n);
    if (type == FLOAT16) return side_512_of(side, into, data, FLOAT16, at, n);
    return side_512_of(side, into, data, BFLOAT16, at, n);
}

/* Words in the order of ordered(). */
AVX512 INLINE __m512i in_order_512(__m512i bits) {
    return _mm512_mask_sub_epi32(bits, _mm512_movepi32_mask(bits), _mm512_set1_epi32(INT32_MIN), bits);
}

/* The largest distance of elements, and how many have the same bits. For numbers of one sign, the distance is that of
 * their bits. */
AVX512 INLINE uint32_t ulp_512_of(const void *x, const void *y, int type, int64_t at, int64_t n, int64_t *equal) {
    __m512i most = _mm512_setzero_si512(), signs = most;
    int64_t same = 0;
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 there = sixteen(i, n);
        __m512i a = words_512(x, type, at + i, there), b = words_512(y, type, at + i, there), d = _mm512_sub_epi32(a, b);
        same += _mm_popcnt_u32(_mm512_mask_testn_epi32_mask(there, d, d));
        signs = _mm512_ternarylogic_epi32(signs, a, b, 0xf6); /* signs | (a ^ b) */
        most = _mm512_max_epu32(most, _mm512_abs_epi32(d));
    }
    *equal += same;
    for (int64_t i = 0; i < n && _mm512_movepi32_mask(signs); i += 16) {
        __mmask16 there = sixteen(i, n);
        __m512i a = in_order_512(words_512(x, type, at + i, there)), b = in_order_512(words_512(y, type, at + i, there));
        if (i == 0) most = _mm512_setzero_si512();
        most = _mm512_max_epu32(most, _mm512_sub_epi32(_mm512_max_epi32(a, b), _mm512_min_epi32(a, b)));
    }
    return _mm512_reduce_max_epu32(most) >> (type == FLOAT32 ? 0 : 16);
}

AVX512 static uint32_t ulp_512(const void *x, const void *y, int type, int64_t at, int64_t n, int64_t *equal) {
    return type == FLOAT32 ? ulp_512_of(x, y, FLOAT32, at, n, equal) : ulp_512_of(x, y, BFLOAT16, at, n, equal);
}

/* reached_edges() */
AVX512 static void reached_512(int64_t *reached, const double *relatives, int64_t whole, const double *edges) {
    __m512d edge[EDGES];
    __m512i found[EDGES], one = _mm512_set1_epi64(1);
    for (int k = 0; k < EDGES; k++) edge[k] = _mm512_set1_pd(edges[k]), found[k] = _mm512_setzero_si512();
    for (int64_t i = 0; i < whole; i += 8) {
        __m512d v = _mm512_maskz_loadu_pd(i + 8 <= whole ? 0xff : 0x0f, relatives + i);
        for (int k = 0; k < EDGES; k++)
            found[k] = _mm512_mask_add_epi64(found[k], _mm512_cmp_pd_mask(v, edge[k], _CMP_GE_OQ), found[k], one);
    }
    for (int k = 0; k < EDGES; k++) reached[k] = _mm512_reduce_add_epi64(found[k]);
}

/* The loop over pair_step(); `relative` is the sum that count_decades() makes elsewhere. */
AVX512 INLINE void pairs_512(pair_lanes_t *lanes, const bars_t *bars, const scratch_t *room, double *sizes,
                             double *relatives, int64_t whole, int tiny) {
    const __m256d floor = _mm256_set1_pd(bars->floor), zero = _mm256_setzero_pd();
    const __m256i one = _mm256_set1_epi64x(1);
    __m256d xy = zero, sum_d = zero, sum_size = zero, dd = zero, sum_relative = zero, most = zero, farthest = zero;
    __m256i equal = _mm256_setzero_si256(), none = equal;
    for (int64_t i = 0; i < whole; i += 4) {
        __m256d a = _mm256_load_pd(room->x + i), b = _mm256_load_pd(room->y + i), d = _mm256_sub_pd(a, b);
        __m256d size = (__m256d)absolute((f64x4)d), magnitude = (__m256d)absolute((f64x4)b);
        __m256d relative = _mm256_div_pd(size, _mm256_max_pd(magnitude, floor));
        xy = _mm256_add_pd(xy, _mm256_mul_pd(a, b));
        sum_d = _mm256_add_pd(sum_d, d);
        sum_size = _mm256_add_pd(sum_size, size);
        dd = _mm256_add_pd(dd, _mm256_mul_pd(size, size));
        equal = _mm256_mask_add_epi64(equal, _mm256_cmp_pd_mask(size, zero, _CMP_EQ_OQ), equal, one);
        if (tiny) none = _mm256_mask_add_epi64(none, _mm256_cmp_pd_mask(relative, zero, _CMP_EQ_OQ), none, one);
        most = _mm256_max_pd(size, most);
        farthest = _mm256_max_pd(relative, farthest);
        sum_relative = _mm256_add_pd(sum_relative, relative);
        _mm256_store_pd(sizes + i, size);
        _mm256_store_pd(relatives + i, relative);
    }
    *lanes = (pair_lanes_t){(f64x4)xy, (f64x4)sum_d, (f64x4)sum_size, (f64x4)dd, (f64x4)most, (f64x4)farthest,
                            (f64x4)sum_relative, (i64x4)equal, (i64x4)(tiny ? none : equal)};
}

AVX512 static void all_pairs_512(pair_lanes_t *lanes, const bars_t *bars, scratch_t *room, int64_t whole, int tiny) {
    if (tiny) pairs_512(lanes, bars, room, room->size, room->relative, whole, 1);
    else pairs_512(lanes, bars, room, room->size, room->relative, whole, 0);
}

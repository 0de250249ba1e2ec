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

typedef struct {
    __m256 low, high;
    __m512d total, squares;
} side_lanes_512_t;

AVX512 INLINE void side_step_512(side_lanes_512_t *lanes, double *into, const float *values) {
    __m256 v = _mm256_loadu_ps(values);
    __m512d d = _mm512_cvtps_pd(v);
    lanes->low = _mm256_min_ps(v, lanes->low); /* the second operand if both are zeros, or one is NaN */
    lanes->high = _mm256_max_ps(v, lanes->high);
    lanes->total = _mm512_add_pd(lanes->total, d);
    lanes->squares = _mm512_add_pd(lanes->squares, _mm512_mul_pd(d, d));
    _mm512_storeu_pd(into, d);
}

/* widen_side() of a float32 tile. The two times four lanes are one vector here. */
AVX512 static int side_512(side_t *side, double *into, const float *values, int64_t n) {
    const int64_t whole = n & ~(int64_t)7;
    side_lanes_512_t lanes = {_mm256_set1_ps(INFINITY), _mm256_set1_ps(-INFINITY), _mm512_setzero_pd(),
                              _mm512_setzero_pd()};
    __m512i low_words = _mm512_setzero_si512(), high_words = low_words;
    int64_t done = 0;
    for (; done + 16 <= n; done += 16) {
        hash_512(_mm512_loadu_si512(values + done), &low_words, &high_words);
        side_step_512(&lanes, into + done, values + done);
        side_step_512(&lanes, into + done + 8, values + done + 8);
    }
    hash_512(_mm512_maskz_loadu_epi32(sixteen(done, n), values + done), &low_words, &high_words);
    if (done < whole) side_step_512(&lanes, into + done, values + done);
    for (int64_t i = whole; i < whole + 8; i++) into[i] = i < n ? values[i] : 0.0;
    side_lanes_t a, b;
    __m512d lows = _mm512_cvtps_pd(lanes.low), highs = _mm512_cvtps_pd(lanes.high);
    a = (side_lanes_t){(f64x4)_mm512_castpd512_pd256(lows), (f64x4)_mm512_castpd512_pd256(highs),
                       (f64x4)_mm512_castpd512_pd256(lanes.total), (f64x4)_mm512_castpd512_pd256(lanes.squares)};
    b = (side_lanes_t){(f64x4)_mm512_extractf64x4_pd(lows, 1), (f64x4)_mm512_extractf64x4_pd(highs, 1),
                       (f64x4)_mm512_extractf64x4_pd(lanes.total, 1), (f64x4)_mm512_extractf64x4_pd(lanes.squares, 1)};
    int fine = sum_side(side, &a, &b, into, whole, n);
    side->hash = fine ? joined(added_512(low_words), added_512(high_words)) : hash_floats(values, n, 0); /* one NaN */
    return fine;
}

/* The bits of sixteen float32 in the order of ordered(). */
AVX512 INLINE __m512i in_order_512(__m512i bits) {
    return _mm512_mask_sub_epi32(bits, _mm512_movepi32_mask(bits), _mm512_set1_epi32(INT32_MIN), bits);
}

/* ulp32() of numbers of any sign. */
AVX512 static uint32_t ulp32_of_signs_512(const int32_t *a, const int32_t *b, int64_t n) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 16) {
        __m512i x = in_order_512(_mm512_maskz_loadu_epi32(sixteen(i, n), a + i));
        __m512i y = in_order_512(_mm512_maskz_loadu_epi32(sixteen(i, n), b + i));
        most = _mm512_max_epu32(most, _mm512_sub_epi32(_mm512_max_epi32(x, y), _mm512_min_epi32(x, y)));
    }
    return _mm512_reduce_max_epu32(most);
}

/* ulp32(), and how many have the same bits. For numbers of one sign, the distance is that of their bits. */
AVX512 static uint32_t ulp32_512(const int32_t *a, const int32_t *b, int64_t n, int64_t *equal) {
    __m512i most = _mm512_setzero_si512(), signs = most;
    int64_t same = 0;
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 there = sixteen(i, n);
        __m512i x = _mm512_maskz_loadu_epi32(there, a + i), y = _mm512_maskz_loadu_epi32(there, b + i);
        __m512i d = _mm512_sub_epi32(x, y);
        same += _mm_popcnt_u32(_mm512_mask_testn_epi32_mask(there, d, d));
        signs = _mm512_ternarylogic_epi32(signs, x, y, 0xf6); /* signs | (x ^ y) */
        most = _mm512_max_epu32(most, _mm512_abs_epi32(d));
    }
    *equal += same;
    return _mm512_movepi32_mask(signs) ? ulp32_of_signs_512(a, b, n) : _mm512_reduce_max_epu32(most);
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

/* The loops of native.c that take most of the time, for processors with AVX-512 (F, VL, DQ, BW).
 *
 * Every sum is kept in the same four lanes and in the same order as in native.c, so that the results are the same to the
 * last bit. The loops over doubles that only sum stay 256 bits wide for that reason; 32 registers and masks make them
 * shorter. Included by native.c; whoever calls has asked has_avx512() first.
 */

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,popcnt")))

static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

/* widen() and finite_side() of a tile of float32. Its two times four lanes are one vector here. */
AVX512 static int side_512(side_t *side, double *into, const float *values, int64_t n) {
    const int64_t whole = n & ~(int64_t)7;
    __m256 low = _mm256_set1_ps(INFINITY), high = _mm256_set1_ps(-INFINITY);
    __m512d total = _mm512_setzero_pd(), squares = total;
    for (int64_t i = 0; i < whole; i += 8) {
        __m256 v = _mm256_loadu_ps(values + i);
        __m512d d = _mm512_cvtps_pd(v);
        low = _mm256_min_ps(v, low); /* the second operand if both are zeros, or one is NaN */
        high = _mm256_max_ps(v, high);
        total = _mm512_add_pd(total, d);
        squares = _mm512_add_pd(squares, _mm512_mul_pd(d, d));
        _mm512_storeu_pd(into + i, d);
    }
    for (int64_t i = whole; i < whole + 8; i++) into[i] = i < n ? values[i] : 0.0;
    side_lanes_t a, b;
    __m512d lows = _mm512_cvtps_pd(low), highs = _mm512_cvtps_pd(high);
    a = (side_lanes_t){(f64x4)_mm512_castpd512_pd256(lows), (f64x4)_mm512_castpd512_pd256(highs),
                       (f64x4)_mm512_castpd512_pd256(total), (f64x4)_mm512_castpd512_pd256(squares)};
    b = (side_lanes_t){(f64x4)_mm512_extractf64x4_pd(lows, 1), (f64x4)_mm512_extractf64x4_pd(highs, 1),
                       (f64x4)_mm512_extractf64x4_pd(total, 1), (f64x4)_mm512_extractf64x4_pd(squares, 1)};
    return sum_side(side, &a, &b, into, whole, n);
}

/* The bits of sixteen float32 as in ordered(). */
AVX512 INLINE __m512i in_order_512(__m512i bits) {
    return _mm512_mask_sub_epi32(bits, _mm512_movepi32_mask(bits), _mm512_set1_epi32(INT32_MIN), bits);
}

/* ulp32(), and how many have the same bits. */
AVX512 static uint32_t ulp32_512(const int32_t *a, const int32_t *b, int64_t n, int64_t *equal) {
    __m512i most = _mm512_setzero_si512();
    int64_t same = 0;
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 there = (__mmask16)(n - i < 16 ? (1 << (n - i)) - 1 : 0xffff);
        __m512i x = _mm512_maskz_loadu_epi32(there, a + i), y = _mm512_maskz_loadu_epi32(there, b + i);
        same += _mm_popcnt_u32(_mm512_mask_cmpeq_epi32_mask(there, x, y));
        x = in_order_512(x);
        y = in_order_512(y);
        most = _mm512_max_epu32(most, _mm512_sub_epi32(_mm512_max_epi32(x, y), _mm512_min_epi32(x, y)));
    }
    *equal += same;
    return _mm512_reduce_max_epu32(most);
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

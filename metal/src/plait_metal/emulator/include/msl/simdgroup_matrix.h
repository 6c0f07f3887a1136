// 8x8 matrices spread over a SIMD group, two elements a lane, in the lane map that MLX's matrix kernels rely on.
#pragma once
#include "msl/simd.h"
#include "msl/vec.h"

namespace msl {

METAL_FUNC int matrix_row(int lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
METAL_FUNC int matrix_column(int lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }

// Where element i of a lane lies in memory.
METAL_FUNC size_t matrix_index(int lane, int i, ulong stride, metal::ulong2 origin, bool transposed) {
  ulong row = matrix_row(lane), column = matrix_column(lane) + i;
  if (transposed) {
    const ulong swapped = row;
    row = column;
    column = swapped;
  }
  return (origin.y + row) * stride + origin.x + column;
}

}  // namespace msl

namespace metal {

template <class T, int Rows, int Columns> struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "Metal has SIMD-group matrices of 8 by 8 only");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit METAL_FUNC simdgroup_matrix(T value) : elements(value, value) {}
  METAL_FUNC vec<T, 2>& thread_elements() { return elements; }
};
template <class T> using matrix8x8 = simdgroup_matrix<T, 8, 8>;
typedef matrix8x8<float> simdgroup_float8x8;
typedef matrix8x8<half> simdgroup_half8x8;
typedef matrix8x8<bfloat> simdgroup_bfloat8x8;

template <class T, int Rows, int Columns>
METAL_FUNC simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Rows, Columns>(value);
}

template <class T, class P>
METAL_FUNC void simdgroup_load(matrix8x8<T>& to, const P* from, ulong stride = 8, ulong2 origin = ulong2(0ul),
                               bool transposed = false, MSL_LINE) {
  const int lane = msl::exchange(msl::kMatrixLoad, 0, line).lane;
  for (int i = 0; i < 2; ++i) to.elements[i] = T(from[msl::matrix_index(lane, i, stride, origin, transposed)]);
}

template <class T, class P>
METAL_FUNC void simdgroup_store(matrix8x8<T> from, P* to, ulong stride = 8, ulong2 origin = ulong2(0ul),
                                bool transposed = false, MSL_LINE) {
  const int lane = msl::exchange(msl::kMatrixStore, 0, line).lane;
  for (int i = 0; i < 2; ++i) to[msl::matrix_index(lane, i, stride, origin, transposed)] = P(from.elements[i]);
}

template <class D, class A, class B, class C>
MSL_UNCHECKED void simdgroup_multiply_accumulate(matrix8x8<D>& d, matrix8x8<A> a, matrix8x8<B> b, matrix8x8<C> c,
                                                 MSL_LINE) {
  const float4 mine(float(a.elements[0]), float(a.elements[1]), float(b.elements[0]), float(b.elements[1]));
  const emu::Exchange e = msl::exchange(msl::kMatrixMultiply, mine, line);
  float left[8][8], right[8][8];
  for (int lane = 0; lane < emu::kSimdWidth; ++lane) {
    const float4 theirs = msl::load<float4>(e.values[lane]);
    const int row = msl::matrix_row(lane), column = msl::matrix_column(lane);
    for (int i = 0; i < 2; ++i) {
      left[row][column + i] = theirs[i];
      right[row][column + i] = theirs[2 + i];
    }
  }
  const int row = msl::matrix_row(e.lane), column = msl::matrix_column(e.lane);
  for (int i = 0; i < 2; ++i) {
    float sum = float(c.elements[i]);
    for (int k = 0; k < 8; ++k) sum += left[row][k] * right[k][column + i];
    d.elements[i] = D(sum);
  }
}

template <class D, class A, class B>
METAL_FUNC void simdgroup_multiply(matrix8x8<D>& d, matrix8x8<A> a, matrix8x8<B> b, MSL_LINE) {
  simdgroup_multiply_accumulate(d, a, b, matrix8x8<float>(0.0f), line);
}

}  // namespace metal

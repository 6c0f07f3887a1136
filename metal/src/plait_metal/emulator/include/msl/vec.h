// Vectors of two, three and four elements, addressed by index or by x, y, z, w (no swizzles).
#pragma once
#include "msl/base.h"
#include "msl/small_float.h"

namespace metal {

template <class T, int N> struct vec;

// What the three sizes share; `fields` are the names of the elements.
#define MSL_VECTOR_BODY(N, ...)                                                             \
  union {                                                                                   \
    struct {                                                                                \
      T __VA_ARGS__;                                                                        \
    };                                                                                      \
    T elements[N];                                                                          \
  };                                                                                        \
  vec() = default;                                                                          \
  template <class S, msl::if_number<S> = 0> METAL_FUNC vec(S value) {                       \
    for (int i = 0; i < N; ++i) elements[i] = T(value);                                     \
  }                                                                                         \
  template <class S> METAL_FUNC explicit vec(vec<S, N> other) {                             \
    for (int i = 0; i < N; ++i) elements[i] = T(other.elements[i]);                         \
  }                                                                                         \
  METAL_FUNC T& operator[](int i) { return elements[i]; }                                   \
  METAL_FUNC const T& operator[](int i) const { return elements[i]; }

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  MSL_VECTOR_BODY(2, x, y)
  METAL_FUNC vec(T a, T b) : elements{a, b} {}
};

// As in Metal, three elements take the room of four.
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  MSL_VECTOR_BODY(3, x, y, z)
  METAL_FUNC vec(T a, T b, T c) : elements{a, b, c} {}
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  MSL_VECTOR_BODY(4, x, y, z, w)
  METAL_FUNC vec(T a, T b, T c, T d) : elements{a, b, c, d} {}
  METAL_FUNC vec(vec<T, 2> low, vec<T, 2> high) : elements{low[0], low[1], high[0], high[1]} {}
};
#undef MSL_VECTOR_BODY

#define MSL_VECTOR_OPERATOR(op)                                                                          \
  template <class T, int N> METAL_FUNC vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {                 \
    for (int i = 0; i < N; ++i) a[i] = a[i] op b[i];                                                     \
    return a;                                                                                            \
  }                                                                                                      \
  template <class T, int N, class S, msl::if_number<S> = 0> METAL_FUNC vec<T, N> operator op(vec<T, N> a, S b) { \
    for (int i = 0; i < N; ++i) a[i] = a[i] op T(b);                                                     \
    return a;                                                                                            \
  }                                                                                                      \
  template <class T, int N, class S, msl::if_number<S> = 0> METAL_FUNC vec<T, N> operator op(S a, vec<T, N> b) { \
    for (int i = 0; i < N; ++i) b[i] = T(a) op b[i];                                                     \
    return b;                                                                                            \
  }                                                                                                      \
  template <class T, int N, class S> METAL_FUNC vec<T, N>& operator op##=(vec<T, N>& a, S b) { return a = a op b; }
MSL_VECTOR_OPERATOR(+)
MSL_VECTOR_OPERATOR(-)
MSL_VECTOR_OPERATOR(*)
MSL_VECTOR_OPERATOR(/)
#undef MSL_VECTOR_OPERATOR

template <class T, int N> METAL_FUNC T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; ++i) sum += a[i] * b[i];
  return sum;
}

#define MSL_VECTOR_NAMES(T) \
  typedef vec<T, 2> T##2;   \
  typedef vec<T, 3> T##3;   \
  typedef vec<T, 4> T##4;
MSL_VECTOR_NAMES(float)
MSL_VECTOR_NAMES(half)
MSL_VECTOR_NAMES(bfloat)
MSL_VECTOR_NAMES(bool)
MSL_VECTOR_NAMES(char)
MSL_VECTOR_NAMES(uchar)
MSL_VECTOR_NAMES(short)
MSL_VECTOR_NAMES(ushort)
MSL_VECTOR_NAMES(int)
MSL_VECTOR_NAMES(uint)
MSL_VECTOR_NAMES(long)
MSL_VECTOR_NAMES(ulong)
#undef MSL_VECTOR_NAMES

}  // namespace metal

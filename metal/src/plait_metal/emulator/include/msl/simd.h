// SIMD-group operations: each lane hands in a value and yields; when all have, each resumes and picks or combines.
#pragma once
#include "msl/abi.h"
#include "msl/base.h"
#include "msl/math.h"

// In which order a reduction combines the lanes: 0 butterfly with lanes 1, 2, 4, 8, 16 apart (Apple's, as far as is
// known), 1 butterfly with 16 first, 2 one lane after another. A test's tolerance should hold in all three.
#ifndef MSL_REDUCTION_ORDER
#define MSL_REDUCTION_ORDER 0
#endif

namespace msl {

// What the runtime compares to see whether all lanes came to the same operation.
enum Operation {
  kSum = 1, kProduct, kMax, kMin, kAnd, kOr, kXor,
  kShuffle = 20, kShuffleXor, kShuffleDown, kShuffleUp, kRotateDown, kRotateUp,
  kBallot = 30, kExclusiveScan, kInclusiveScan,
  kMatrixLoad = 40, kMatrixStore, kMatrixMultiply,
};

template <class T> METAL_FUNC T load(const void* address) {
  static_assert(sizeof(T) <= emu::kExchangeBytes, "lanes exchange values of at most 16 bytes");
  T value;
  __builtin_memcpy(&value, address, sizeof value);
  return value;
}

template <class T> METAL_FUNC emu::Exchange exchange(Operation operation, T value, int line) {
  static_assert(sizeof(T) <= emu::kExchangeBytes, "lanes exchange values of at most 16 bytes");
  return emu_exchange(operation, line, &value, sizeof value);
}

template <Operation op, class T> METAL_FUNC T combine(T a, T b) {
  if constexpr (op == kSum) return T(a + b);
  else if constexpr (op == kProduct) return T(a * b);
  else if constexpr (op == kMax) return math::max(a, b);
  else if constexpr (op == kMin) return math::min(a, b);
  else if constexpr (op == kAnd) return T(a & b);
  else if constexpr (op == kOr) return T(a | b);
  else return T(a ^ b);
}

template <Operation op, class T> MSL_UNCHECKED T reduce(T value, int line) {
  const emu::Exchange e = exchange(op, value, line);
  if (e.first) {
    T a[emu::kSimdWidth];
    int n = 0;
    for (int i = 0; i < emu::kSimdWidth; ++i)
      if (e.lanes >> i & 1) a[n++] = load<T>(e.values[i]);
    if (MSL_REDUCTION_ORDER == 0) {
      for (int apart = 1; apart < n; apart *= 2)
        for (int i = 0; i + apart < n; i += 2 * apart) a[i] = combine<op>(a[i], a[i + apart]);
    } else if (MSL_REDUCTION_ORDER == 1) {
      for (int apart = emu::kSimdWidth / 2; apart; apart /= 2)
        for (int i = 0; i < apart && i + apart < n; ++i) a[i] = combine<op>(a[i], a[i + apart]);
    } else {
      for (int i = 1; i < n; ++i) a[0] = combine<op>(a[0], a[i]);
    }
    __builtin_memcpy(e.result, &a[0], sizeof(T));
  }
  return load<T>(e.result);
}

// The lane that `lane` reads from. Up and down keep their own value at the edge; rotations wrap round.
METAL_FUNC int source_lane(Operation op, int lane, int argument) {
  const int last = emu::kSimdWidth - 1;
  switch (op) {
    case kShuffleXor: return lane ^ argument;
    case kShuffleDown: return lane + argument > last ? lane : lane + argument;
    case kShuffleUp: return lane - argument < 0 ? lane : lane - argument;
    case kRotateDown: return (lane + argument) & last;
    case kRotateUp: return (lane - argument) & last;
    default: return argument;
  }
}

template <Operation op, class T> MSL_UNCHECKED T shuffle(T value, int argument, int line) {
  const emu::Exchange e = exchange(op, value, line);
  const int source = source_lane(op, e.lane, argument);
  if (source < 0 || source >= emu::kSimdWidth || !(e.lanes >> source & 1))
    emu_fail("lane", line, "a SIMD shuffle reads a lane that does not exist");
  return load<T>(e.values[source]);
}

MSL_UNCHECKED inline uint64_t ballot(bool value, int line) {
  const emu::Exchange e = exchange(kBallot, value, line);
  uint64_t votes = 0;
  for (int i = 0; i < emu::kSimdWidth; ++i)
    if ((e.lanes >> i & 1) && e.values[i][0]) votes |= uint64_t(1) << i;
  return votes;
}

template <Operation op, class T> MSL_UNCHECKED T scan(T value, int line) {
  const emu::Exchange e = exchange(op, value, line);
  T sum = T(0);
  for (int i = 0; i < e.lane + (op == kInclusiveScan); ++i) sum = T(sum + load<T>(e.values[i]));
  return sum;
}

}  // namespace msl

namespace metal {

#define MSL_REDUCTION(name, op) \
  template <class T> METAL_FUNC T name(T value, MSL_LINE) { return msl::reduce<msl::op>(value, line); }
MSL_REDUCTION(simd_sum, kSum)
MSL_REDUCTION(simd_product, kProduct)
MSL_REDUCTION(simd_max, kMax)
MSL_REDUCTION(simd_min, kMin)
MSL_REDUCTION(simd_and, kAnd)
MSL_REDUCTION(simd_or, kOr)
MSL_REDUCTION(simd_xor, kXor)
#undef MSL_REDUCTION

#define MSL_SHUFFLE(name, op) \
  template <class T> METAL_FUNC T name(T value, ushort argument, MSL_LINE) { return msl::shuffle<msl::op>(value, argument, line); }
MSL_SHUFFLE(simd_shuffle, kShuffle)
MSL_SHUFFLE(simd_broadcast, kShuffle)
MSL_SHUFFLE(simd_shuffle_xor, kShuffleXor)
MSL_SHUFFLE(simd_shuffle_down, kShuffleDown)
MSL_SHUFFLE(simd_shuffle_up, kShuffleUp)
MSL_SHUFFLE(simd_shuffle_rotate_down, kRotateDown)
MSL_SHUFFLE(simd_shuffle_rotate_up, kRotateUp)
MSL_SHUFFLE(quad_shuffle_xor, kShuffleXor)
#undef MSL_SHUFFLE

template <class T> METAL_FUNC T simd_broadcast_first(T value, MSL_LINE) {
  return msl::shuffle<msl::kShuffle>(value, 0, line);
}
template <class T> METAL_FUNC T quad_sum(T value, MSL_LINE) {
  value += msl::shuffle<msl::kShuffleXor>(value, 1, line);
  return value + msl::shuffle<msl::kShuffleXor>(value, 2, line);
}

struct simd_vote {
  uint64_t votes;
  METAL_FUNC bool any() const { return votes != 0; }
  METAL_FUNC explicit operator uint64_t() const { return votes; }
};
METAL_FUNC simd_vote simd_ballot(bool value, MSL_LINE) { return {msl::ballot(value, line)}; }
METAL_FUNC bool simd_any(bool value, MSL_LINE) { return msl::ballot(value, line) != 0; }
METAL_FUNC bool simd_all(bool value, MSL_LINE) { return msl::ballot(!value, line) == 0; }

template <class T> METAL_FUNC T simd_prefix_inclusive_sum(T value, MSL_LINE) {
  return msl::scan<msl::kInclusiveScan>(value, line);
}
template <class T> METAL_FUNC T simd_prefix_exclusive_sum(T value, MSL_LINE) {
  return msl::scan<msl::kExclusiveScan>(value, line);
}

}  // namespace metal

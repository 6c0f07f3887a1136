// Atomics, relaxed only, as Metal has them. They conflict with plain accesses, not with one another.
#pragma once
#include "msl/abi.h"
#include "msl/base.h"
#include "msl/math.h"

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T> struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#define MSL_ATOMIC(name, expression)                                               \
  template <class T, class U> MSL_UNCHECKED T name(atomic<T>* place, U u, memory_order) { \
    emu_atomic(place, sizeof(T), true);                                            \
    const T old = place->value;                                                    \
    place->value = T(expression);                                                  \
    return old;                                                                    \
  }
MSL_ATOMIC(atomic_fetch_add_explicit, old + T(u))
MSL_ATOMIC(atomic_fetch_sub_explicit, old - T(u))
MSL_ATOMIC(atomic_fetch_max_explicit, max(old, T(u)))
MSL_ATOMIC(atomic_fetch_min_explicit, min(old, T(u)))
MSL_ATOMIC(atomic_fetch_and_explicit, old & T(u))
MSL_ATOMIC(atomic_fetch_or_explicit, old | T(u))
MSL_ATOMIC(atomic_fetch_xor_explicit, old ^ T(u))
MSL_ATOMIC(atomic_exchange_explicit, T(u))
MSL_ATOMIC(atomic_store_explicit, T(u))
#undef MSL_ATOMIC

template <class T> MSL_UNCHECKED T atomic_load_explicit(const atomic<T>* place, memory_order) {
  emu_atomic(place, sizeof(T), false);
  return place->value;
}

template <class T, class U>
MSL_UNCHECKED bool atomic_compare_exchange_weak_explicit(atomic<T>* place, T* expected, U desired, memory_order,
                                                         memory_order) {
  emu_atomic(place, sizeof(T), true);
  if (place->value == *expected) {
    place->value = T(desired);
    return true;
  }
  *expected = place->value;
  return false;
}

}  // namespace metal

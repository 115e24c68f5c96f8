// Turns a function into an XLA FFI handler of the library.
#pragma once

#include <cstring>
#include <new>

#include "buffers.h"

#ifdef _WIN32
#define JAXDML_EXPORT extern "C" __declspec(dllexport)
#else
#define JAXDML_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace jaxdml {

using Buffer = ffi::AnyBuffer;

const Kernels* chosen_kernels();  // null if none were chosen

// Reads an element of 8 or 16 bits.
inline int32_t integer_at(const uint8_t* at, Buffer of) {
  if (is_byte(of)) return is_signed(of) ? int8_t(*at) : *at;
  uint16_t word;
  std::memcpy(&word, at, sizeof word);
  return is_signed(of) ? int16_t(word) : word;
}

inline bool is_sound(Buffer x) { return is_shape(x.dimensions()); }
inline bool is_sound(ffi::Result<Buffer> x) { return is_shape(x->dimensions()); }
template <class T>
bool is_sound(const T&) {
  return true;
}

// Calls kFunction, which can rely on three things: no shape overflows, the kernels stay the same throughout the call,
// and a failed allocation becomes an FFI error instead of an exception inside XLA.
template <auto kFunction>
struct Guarded;
template <class... Arguments, ffi::Error (*kFunction)(const Kernels&, Arguments...)>
struct Guarded<kFunction> {
  static ffi::Error call(Arguments... arguments) {
    const Kernels* const kernels = chosen_kernels();
    JAXDML_EXPECT(kernels, "no kernels were chosen");
    JAXDML_EXPECT((is_sound(arguments) && ...), "a buffer is too large, or has a negative dimension");
    try {
      return kFunction(*kernels, arguments...);
    } catch (const std::bad_alloc&) {
      return no_memory();
    }
  }
};

#define JAXDML_HANDLER(name, function, ...)                                 \
  JAXDML_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {             \
    XLA_FFI_DEFINE_HANDLER(handler, Guarded<&function>::call, __VA_ARGS__); \
    return (*handler)(frame);                                               \
  }

}  // namespace jaxdml

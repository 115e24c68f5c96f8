// The windows of a convolution in planes: what each kernel element reads (see planes.h).
#pragma once

#include "planes.h"

namespace jaxdml::JAXDML_ISA {

// One element of the kernel.
struct Tap {
  int64_t offset;       // from a position to the element's input
  const uint8_t* mask;  // marks columns inside the image; null if all are inside
};

// Loads a tap's input at kBytes positions, beginning at output column `column`. kAreInside means that no position reads
// padding.
template <bool kAreInside>
JAXDML_INLINE I32 load_window(const Tap& tap, const uint8_t* planes, int64_t column, I32 padding, I32 top) {
  const I32 x = load(planes + tap.offset);
  if (kAreInside || !tap.mask) return x ^ top;
  return ((x ^ padding) & load(tap.mask + column)) ^ padding ^ top;
}

struct Windows {
  Planes planes;
  Tap* taps;       // of each kernel element
  Inside inside;   // columns at which kBytes positions may begin and end without reading padding
  uint8_t* masks;  // one for each column of the kernel
  int64_t mask_bytes;
};

JAXDML_INLINE Windows plan_windows(const Convolution& one, Arena& arena) {
  Windows windows;
  windows.planes = planes_of(one);
  windows.taps = take<Tap>(arena, one.filter.rows * one.filter.columns);
  windows.mask_bytes = windows.planes.pitch + kBytes;
  windows.masks = take<uint8_t>(arena, windows.planes.has_columns ? 0 : one.filter.columns * windows.mask_bytes);
  return windows;
}

JAXDML_INLINE void set_windows(const Convolution& one, Windows& windows) {
  windows.inside = {0, windows.mask_bytes};  // if no column is masked
  for (int64_t v = 0; v < one.filter.columns; v++) {
    const Inside inside = windows.planes.has_columns ? Inside{0, one.y_width} : inside_of(one, v);
    uint8_t* mask = windows.masks + v * windows.mask_bytes;
    const bool is_masked = inside.begin > 0 || inside.end < one.y_width;
    if (is_masked) {
      windows.inside = {at_least(windows.inside.begin, inside.begin), at_most(windows.inside.end, inside.end)};
      set_mask(inside, windows.planes.pitch, windows.mask_bytes, mask);
    }
    for (int64_t u = 0; u < one.filter.rows; u++)
      windows.taps[u * one.filter.columns + v] = {plane_offset(one, windows.planes, u, v), is_masked ? mask : nullptr};
  }
}

// Whether kBytes positions, beginning at output column `column`, read no padding.
JAXDML_INLINE bool are_inside(const Windows& windows, int64_t column) {
  return column >= windows.inside.begin && column + kBytes <= windows.inside.end;
}

}  // namespace jaxdml::JAXDML_ISA

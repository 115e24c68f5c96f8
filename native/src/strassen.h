// Large products of 16-bit words by Winograd's variant of Strassen's method: 7 products of quarters instead of 8.
//
// A = (a11 a12; a21 a22) is two tiles of rows, split at half the depth. B is two panels of columns, also split. With
//   s1 = a21 + a22   s2 = s1 - a11   s3 = a11 - a21   s4 = a12 - s2
//   t1 = b12 - b11   t2 = b22 - t1   t3 = b22 - b12   t4 = t2 - b21
//   p1 = a11 b11   p2 = a12 b21   p3 = s4 b22   p4 = a22 t4   p5 = s1 t1   p6 = s2 t2   p7 = s3 t3
// the product is
//   c11 = p1 + p2                  c12 = p1 + p6 + p5 + p3
//   c21 = p1 + p6 + p7 - p4        c22 = p1 + p6 + p7 + p5
// exactly, modulo 2**32. docs/strassen.md proves this, and that each factor fits a word.
#pragma once

#include "microkernel.h"
#include "pack_matrix.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kTwoTiles = 2 * kRows, kTwoPanels = 2 * kTile;  // rows and columns of one product by this method
constexpr int kRowFactors = 7, kPanelFactors = 4;  // computed factors; the other three panel factors are quarters of b

// Whether the saved multiplications outweigh the extra additions, and the row factors fit the cache. Instruction sets
// that multiply bytes cannot use this method, because the factors need more than 8 bits.
JAXDML_INLINE bool is_worth_quarters(const Matmul& one) {
  return kDepth == 2 && one.rows >= 4 * kTwoTiles && one.columns >= 2 * kTwoPanels && one.depth >= 256 &&
         one.depth <= 4096;
}

struct Halves {
  int64_t first, second;               // dwords of each half of the depth; the second half may be one dword shorter
  int64_t row_stride;                  // dwords from row to row of a factor
  int64_t row_bytes, panel_bytes;      // bytes of a row factor, and of a panel factor
  int64_t packed_first, packed_bytes;  // bytes of a packed panel's first half, and of the whole panel
};
JAXDML_INLINE Halves halves_of(int64_t depth) {
  constexpr int64_t kPacked = kVectors * WeightLanes::kVectorBytes;
  const int64_t dwords = padded_depth(depth) / kDepth, first = ceil_div(dwords, 2);
  const int64_t stride = row_cells(first * kDepth) / kDepth;
  return {first,           dwords - first,  stride, kRows * stride * 4, first * kVectors * kBytes,
          first * kPacked, dwords * kPacked};
}

template <class Word>
struct Quarters {
  Word x11, x12, x21, x22;
};

// The left factors of p1 to p7.
template <class Word>
JAXDML_INLINE void row_factors(const Quarters<Word>& a, Word (&factors)[kRowFactors]) {
  const Word s1 = a.x21 + a.x22, s2 = s1 - a.x11;
  factors[0] = a.x11;
  factors[1] = a.x12;
  factors[2] = a.x12 - s2;
  factors[3] = a.x22;
  factors[4] = s1;
  factors[5] = s2;
  factors[6] = a.x11 - a.x21;
}

// Computes the row factors of two tiles of a. The flip converts a to uint8.
static void combine_rows(const uint8_t* a, uint8_t flip, int64_t depth, const Halves& halves, uint8_t* to) {
  constexpr int64_t kWords = kBytes / 2;
  const int64_t half = halves.first * kDepth;
  for (int64_t r = 0; r < kRows; r++) {
    const uint8_t *upper = a + r * depth, *lower = a + (kRows + r) * depth;
    uint8_t* row = to + r * halves.row_stride * 4;
    int64_t k = 0;
    for (; half + k + kWords <= depth; k += kWords) {
      const auto words = [&](const uint8_t* from) { return words_of_bytes(from + k, flip); };
      I16 factors[kRowFactors];
      row_factors<I16>({words(upper), words(upper + half), words(lower), words(lower + half)}, factors);
#pragma GCC unroll 8
      for (int i = 0; i < kRowFactors; i++) store(row + i * halves.row_bytes + k * 2, (I32)factors[i]);
    }
    for (; k < half; k++) {
      const auto word = [&](const uint8_t* from, int64_t at) {
        return int16_t(at < depth ? uint8_t(from[at] ^ flip) : 0);
      };
      int16_t factors[kRowFactors];
      row_factors<int16_t>({word(upper, k), word(upper, half + k), word(lower, k), word(lower, half + k)}, factors);
      for (int i = 0; i < kRowFactors; i++) memcpy(row + i * halves.row_bytes + k * 2, factors + i, 2);
    }
  }
}

// Computes the factors t4, t1, t2 and t3 of two panels of b. The other three factors are quarters of b.
static void combine_panels(const uint8_t* panels, const Halves& halves, uint8_t* to) {
  const uint8_t *left = panels, *right = panels + halves.packed_bytes;
  for (int64_t k = 0; k < halves.first; k++)
    for (int64_t v = 0; v < kVectors; v++) {
      const auto words = [&](const uint8_t* half) {
        return (I16)WeightLanes::lanes(half + (k * kVectors + v) * WeightLanes::kVectorBytes);
      };
      const bool has_second = k < halves.second;
      const I16 b11 = words(left), b12 = words(right);
      const I16 b21 = has_second ? words(left + halves.packed_first) : I16{};
      const I16 b22 = has_second ? words(right + halves.packed_first) : I16{};
      const I16 t1 = b12 - b11, t2 = b22 - t1;
      const I16 factors[kPanelFactors] = {t2 - b21, t1, t2, b22 - b12};
#pragma GCC unroll 4
      for (int i = 0; i < kPanelFactors; i++)
        store(to + i * halves.panel_bytes + (k * kVectors + v) * kBytes, (I32)factors[i]);
    }
}

// Multiplies two tiles of rows, given as row factors, by two panels, given as packed quarters and panel factors.
static void multiply_quarters(const uint8_t* row_factors, const uint8_t* panels, const uint8_t* panel_factors,
                              const Halves& halves, I32 (&c)[2][kRows][2][kVectors]) {
  I32 p1[kRows][kVectors], p2[kRows][kVectors], p3[kRows][kVectors], p4[kRows][kVectors], p5[kRows][kVectors],
      p6[kRows][kVectors], p7[kRows][kVectors];
  const auto a = [&](int i) { return reinterpret_cast<const Dword*>(row_factors + i * halves.row_bytes); };
  const auto t = [&](int i) { return panel_factors + i * halves.panel_bytes; };
  const int64_t stride = halves.row_stride;
  const uint8_t *b11 = panels, *b21 = b11 + halves.packed_first, *b22 = b21 + halves.packed_bytes;
  multiply_rows<kRows, kVectors, WeightLanes>(a(0), stride, b11, halves.first, p1);
  multiply_rows<kRows, kVectors, WeightLanes>(a(1), stride, b21, halves.second, p2);
  multiply_rows<kRows, kVectors, WeightLanes>(a(2), stride, b22, halves.second, p3);
  multiply_rows<kRows, kVectors, Words>(a(3), stride, t(0), halves.first, p4);
  multiply_rows<kRows, kVectors, Words>(a(4), stride, t(1), halves.first, p5);
  multiply_rows<kRows, kVectors, Words>(a(5), stride, t(2), halves.first, p6);
  multiply_rows<kRows, kVectors, Words>(a(6), stride, t(3), halves.first, p7);
  for (int r = 0; r < kRows; r++)
    for (int v = 0; v < kVectors; v++) {
      const I32 u2 = add(p1[r][v], p6[r][v]), u3 = add(u2, p7[r][v]);
      c[0][r][0][v] = add(p1[r][v], p2[r][v]);
      c[0][r][1][v] = add(add(u2, p5[r][v]), p3[r][v]);
      c[1][r][0][v] = subtract(u3, p4[r][v]);
      c[1][r][1][v] = add(u3, p5[r][v]);
    }
}

}  // namespace jaxdml::JAXDML_ISA

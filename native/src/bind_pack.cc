// Handlers that pack weights, and the sizes of packed weights.
#include "handler.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

ffi::Error pack_matrix(const Kernels& kernels, ffi::ThreadPool threads, Buffer b, ffi::Result<Buffer> result) {
  const auto dims = b.dimensions(), to = result->dimensions();
  JAXDML_EXPECT(dims.size() >= 2 && to.size() == dims.size() - 1 && is_byte(b), "b is not a matrix of int8 or uint8");
  const size_t leading = dims.size() - 2;
  const int64_t depth = dims[leading], columns = dims[leading + 1], count = product(dims, 0, leading);
  const int64_t bytes = kernels.matrix_bytes(depth, columns);
  JAXDML_EXPECT(to[leading] == bytes && product(to, 0, leading) == count && result->element_type() == ffi::DataType::S8,
                "the result does not have the size of the packed matrix");
  const Pool pool = pool_of(threads, count * depth * columns * 4);
  for (int64_t i = 0; i < count; i++) {
    uint8_t* const packed = static_cast<uint8_t*>(result->untyped_data()) + i * bytes;
    kernels.pack_matrix(pool, static_cast<const uint8_t*>(b.untyped_data()) + i * depth * columns, is_signed(b), depth,
                        columns, packed);
    seal(packed, bytes);
  }
  return ffi::Error::Success();
}

ffi::Error pack_filter(const Kernels& kernels, ffi::ThreadPool threads, Buffer filter, ffi::Result<Buffer> result,
                       int64_t group_count) {
  const auto dims = filter.dimensions(), to = result->dimensions();
  JAXDML_EXPECT(dims.size() >= 4 && to.size() == dims.size() - 3 && is_byte(filter),
                "the filter is not int8 or uint8 with two spatial dimensions");
  const size_t leading = dims.size() - 4;
  Filter shape;
  JAXDML_RETURN_IF_WRONG(read_filter(Numbers(dims.begin() + leading, 4), group_count, shape));
  const int64_t bytes = kernels.filter_bytes(shape), count = product(dims, 0, leading);
  const int64_t size = product(dims, leading, leading + 4);
  JAXDML_EXPECT(to[leading] == bytes && product(to, 0, leading) == count && result->element_type() == ffi::DataType::S8,
                "the result does not have the size of the packed filter");
  const Pool pool = pool_of(threads, count * size * 16);
  for (int64_t i = 0; i < count; i++) {
    uint8_t* const packed = static_cast<uint8_t*>(result->untyped_data()) + i * bytes;
    kernels.pack_filter(pool, static_cast<const uint8_t*>(filter.untyped_data()) + i * size, is_signed(filter), shape,
                        packed);
    seal(packed, bytes);
  }
  return ffi::Error::Success();
}

}  // namespace

// The sizes of packed weights in bytes; -1 if the shape is invalid or no kernels were chosen.
JAXDML_EXPORT int64_t jaxdml_cpu_matrix_bytes(int64_t depth, int64_t columns) {
  const Kernels* const kernels = chosen_kernels();
  return kernels ? matrix_bytes(*kernels, depth, columns).number() : -1;
}
JAXDML_EXPORT int64_t jaxdml_cpu_filter_bytes(const int64_t* shape, int64_t groups) {
  const Kernels* const kernels = chosen_kernels();
  Filter filter;
  return kernels && read_filter({shape, 4}, groups, filter).success() ? kernels->filter_bytes(filter) : -1;
}

JAXDML_HANDLER(jaxdml_cpu_pack_matrix, pack_matrix, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>())
JAXDML_HANDLER(jaxdml_cpu_pack_filter, pack_filter,
               ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>("group_count"))

}  // namespace jaxdml

// The handler of attention.
#include <vector>

#include "handler.h"
#include "scratch.h"
#include "threads.h"

namespace jaxdml {
namespace {

constexpr int64_t kPace = 8;  // int8 multiplications that take as long as one multiplication of attention

// Whether x broadcasts to `sizes`: after the leading dimensions, each of the next three is 1 or equals that of `sizes`,
// and the last equals that of `sizes`. If the last dimension is 0, the call has no such operand.
bool is_for_scores(Buffer x, size_t leading, const int64_t (&sizes)[4]) {
  const auto dims = x.dimensions();
  if (!dims[leading + 3]) return true;
  for (size_t i = 0; i < 4; i++)
    if (dims[leading + i] != sizes[i] && (dims[leading + i] != 1 || i == 3)) return false;
  return true;
}
bool is_given(Buffer x) { return x.dimensions().back() != 0; }
void set_steps(Buffer x, size_t leading, int64_t (&steps)[3]) {
  const auto dims = x.dimensions();
  int64_t step = dims[leading + 3];
  for (size_t i = 3; i-- > 0; step *= dims[leading + i]) steps[i] = dims[leading + i] == 1 ? 0 : step;
}

ffi::Error attention(const Kernels& kernels, ffi::ThreadPool threads, Buffer query, Buffer key, Buffer value,
                     Buffer seen, Buffer bias, Buffer sink, ffi::Result<Buffer> result, float scale, float softcap,
                     int64_t kind) {
  const Buffer y = *result;
  const auto of_y = y.dimensions();
  JAXDML_EXPECT(of_y.size() >= 4, "the result has fewer than four dimensions");
  const size_t leading = of_y.size() - 4;
  for (const Buffer& x : {query, key, value, seen, bias})
    JAXDML_EXPECT(leads(x, y, leading, leading + 4), "an operand's leading dimensions differ from the result's");
  JAXDML_EXPECT(leads(sink, y, leading, leading + 1), "the sink's leading dimensions differ from the result's");
  for (const Buffer& x : {query, key, value, bias, sink, y})
    JAXDML_EXPECT(x.element_type() == ffi::DataType::F32, "an array is not float32");
  JAXDML_EXPECT(seen.element_type() == ffi::DataType::PRED, "seen does not have truth values");
  JAXDML_EXPECT(kind >= 0 && kind < int64_t(AttentionResult::kCount), "there is no such result");
  const auto of_query = query.dimensions(), of_key = key.dimensions(), of_value = value.dimensions();
  Attention one = {};
  one.batch = of_query[leading];
  one.heads = of_query[leading + 1];
  one.rows = of_query[leading + 2];
  one.depth = of_query[leading + 3];
  one.groups = of_key[leading + 1];
  one.keys = of_key[leading + 2];
  one.width = of_value[leading + 3];
  one.scale = scale;
  one.softcap = softcap;
  one.result = AttentionResult(kind);
  JAXDML_EXPECT(of_key[leading] == one.batch && of_key[leading + 3] == one.depth,
                "the keys' batch or size differs from the queries'");
  JAXDML_EXPECT(
      of_value[leading] == one.batch && of_value[leading + 1] == one.groups && of_value[leading + 2] == one.keys,
      "the values differ from the keys in batch, heads or number");
  JAXDML_EXPECT(one.keys && one.depth && one.width && one.groups && one.heads % one.groups == 0,
                "there are no keys or values, or the keys' heads do not divide the queries' heads");
  JAXDML_EXPECT(one.depth <= kMostAttentionDepth, "keys are too long");
  const int64_t sizes[4] = {one.batch, one.heads, one.rows, one.keys};
  JAXDML_EXPECT(is_for_scores(seen, leading, sizes) && is_for_scores(bias, leading, sizes),
                "seen or bias does not broadcast to the scores");
  const int64_t of_sink = sink.dimensions()[leading];
  JAXDML_EXPECT(of_sink == 0 || of_sink == one.heads, "the sink needs one element for each head");
  const int64_t last = one.result == AttentionResult::kOutput ? one.width : one.keys;
  JAXDML_EXPECT(of_y[leading] == one.batch && of_y[leading + 1] == one.heads && of_y[leading + 2] == one.rows &&
                    of_y[leading + 3] == last,
                "the result's shape does not match the operands");
  const int64_t count = product(of_y, 0, leading);
  if (!count || !one.batch || !one.heads || !one.rows) return ffi::Error::Success();
  const Size work =
      Size(count) * one.batch * one.heads * one.rows * one.keys * (Size(one.depth) + Size(one.width)) * kPace;
  JAXDML_EXPECT(work.is_size(), "attention needs too many multiplications");

  if (is_given(seen)) set_steps(seen, leading, one.seen_steps);
  if (is_given(bias)) set_steps(bias, leading, one.bias_steps);
  std::vector<Attention> problems(size_t(count), one);
  for (int64_t i = 0; i < count; i++) {
    const auto at = [&](Buffer x) { return reinterpret_cast<float*>(at_problem(x, y, leading, i)); };
    Attention& each = problems[size_t(i)];
    each.query = at(query);
    each.key = at(key);
    each.value = at(value);
    each.seen = is_given(seen) ? at_problem(seen, y, leading, i) : nullptr;
    each.bias = is_given(bias) ? at(bias) : nullptr;
    each.sink = of_sink ? at(sink) : nullptr;
    each.y = at(y);
  }
  const FloatMode mode;
  const Pool pool = pool_of(threads, work.number());
  const Scratch scratch(kernels.attention_scratch(one, pool.threads));
  if (!scratch.is_there()) return no_memory();
  kernels.attention(pool, problems.data(), count, scratch.at());
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_attention, attention,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // query, key, value
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // seen, bias, sink; each is empty if not given
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<float>("scale")
                   .Attr<float>("softcap")
                   .Attr<int64_t>("which"))

}  // namespace jaxdml

// Chooses the kernels, and reports the jaxlib version of the build. The files bind_*.cc have the handlers for XLA.
//
// A handler validates each buffer's shape before it computes a pointer into the buffer. A call has one problem for each
// index of its leading dimensions, which come from vmap and from batched products. An operand is broadcast along each
// leading dimension in which its size is 1.
#include <atomic>
#include <cstring>

#include "handler.h"
#include "processor.h"

namespace jaxdml {
namespace {

// Atomic, because other threads' calls may be running when kernels are chosen again.
std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels* chosen_kernels() { return chosen; }

// Chooses kernels by name; an empty name chooses the fastest. Returns the chosen name, or null if none can run here.
JAXDML_EXPORT const char* jaxdml_cpu_choose(const char* name) {
  for (const InstructionSet& each : kSets)
    if ((!*name || !std::strcmp(name, each.kernels->name)) && each.runs_here()) {
      chosen = each.kernels;
      return each.kernels->name;
    }
  return nullptr;
}

JAXDML_EXPORT const char* jaxdml_cpu_built_with() { return JAXDML_JAXLIB_VERSION; }

}  // namespace jaxdml

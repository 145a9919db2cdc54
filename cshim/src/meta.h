// The meta device, whose tensors have shapes and no memory.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

namespace ls {

// Adds the kernels that libtorch lacks. Called once, by ls_init.
void add_meta_kernels();
// Installs the allocator that records plans (linstock/plan.h). Called once, by ls_init.
void make_meta_allocator();
// Names a storage on the meta device, whose address is null.
uint64_t name_of_meta(const c10::Storage &s);

}  // namespace ls

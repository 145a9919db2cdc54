/* Linstock's C API over libtorch, in one header for each audience.
 *
 * # Conventions
 *
 *  1. Handles. An ls_tensor is one owned reference to a libtorch tensor; 0 is "no tensor". A function borrows the
 *     handles it is given and never frees them. Every handle it returns is the caller's, who frees it exactly once
 *     with ls_tensor_free or ls_tensors_free, on any thread. The same holds for an ls_object, which
 *     ls_object_free frees.
 *  2. Pointers. A pointer is not NULL unless a comment says so; an array of no elements may be NULL. The shim
 * keeps no pointer to the caller's memory beyond the call, except where a comment says so.
 *  3. Errors. A call returns its own errors: an ls_error that is not NULL is the caller's, who reads its fields
 * and frees it with ls_error_free. No other result of a failed call is meaningful. There is no "last error".
 *  4. Exceptions. No exception leaves a function. A function that returns no error does as much of its work as it
 *     can, and returns 0 where it has failed.
 *  5. Values. Arguments and results of ls_op_call are flat arrays of 16-byte ls_value. A list or string is a
 * header slot (tag, len) followed by its elements, 8 bytes each (bytes for a string), padded to whole slots.
 *  6. Threads. Any thread may call any function. Threads may use one handle at the same time as libtorch allows
 * for its tensors: reads always, a write only if nothing else uses the tensor. No other use of a handle may run at
 *     the same time as its free.
 *  7. Thread state. Modes, the scope word, saved-tensor policies and ls_sweeping_set belong to the calling thread;
 * a caller whose tasks move between threads must not move one while it has set any of them. Seeds, thread counts,
 *     determinism and dtypes belong to the process.
 *  8. The scope word. Each result carries the calling thread's ls_scope_set value. The shim gives it no meaning.
 *  9. Callbacks. Only the functions marked CALLS BACK call the functions given to ls_callbacks_set.
 * 10. Numbers of dtypes, layouts and device types are libtorch's own, which its versions do not change. A device
 * is (type << 8) | (index & 0xff); the CPU is 0xff.
 * 11. Names. ls_NOUN_verb: a function is named after what it is about. ls_aten_NAME_OVERLOAD is an operator.
 *
 * # ABI
 *
 * A caller loads the library, compares ls_abi() with LS_ABI, and must use no other function where they differ:
 * LS_ABI is a hash of these headers, so that each change of a struct or a signature is another ABI. Structs grow
 * only with a change of the headers, and have no room for later fields. The library exports these functions and no
 * others. It needs the libtorch that it was built against (ls_torch_version_built), which the loader finds first.
 */
#ifndef LINSTOCK_H_
#define LINSTOCK_H_

#include "linstock/autograd.h"
#include "linstock/core.h"
#include "linstock/cuda.h"
#include "linstock/dist.h"
#include "linstock/memory.h"
#include "linstock/ops_gen.h"
#include "linstock/plan.h"
#include "linstock/pressure.h"
#include "linstock/profile.h"
#include "linstock/stream.h"
#include "linstock/tensor.h"
#include "linstock/test.h"
#include "linstock/trace.h"

#endif /* LINSTOCK_H_ */

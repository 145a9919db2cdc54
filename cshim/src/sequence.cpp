// The sequence numbers of the nodes of autograd graphs. Of the nodes that are ready, the engine runs the one with
// the highest number first. libtorch counts on each thread. A goroutine may continue on another thread after any
// operator: its nodes would then run in another order, which changes the last bits of sums and the peak of the
// memory. Here one counter serves all threads, so a goroutine's nodes have increasing numbers on whatever threads
// it made them.
//
// The shim is the first library in which the loader looks for the symbols of libtorch, so libtorch calls these
// functions.
#include <ATen/SequenceNumber.h>

#include <atomic>

namespace at::sequence_number {
namespace {
std::atomic<uint64_t> next{0};
}

uint64_t peek() { return next.load(std::memory_order_relaxed); }

uint64_t get_and_increment() { return next.fetch_add(1, std::memory_order_relaxed); }

}  // namespace at::sequence_number

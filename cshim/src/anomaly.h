// Anomaly detection: which node of the graph failed in a backward pass, and which call of the program made it.
//
// While a thread is in the mode, each node that an operator on it adds to the graph waits for the number of the
// call (its site), as sampled blocks do: ls_samples_attach names it. libtorch's switch is the process's, so nodes
// of other threads get metadata too, but no site; and their backward passes are checked for NaN.
#pragma once

#include <torch/csrc/autograd/anomaly_mode.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

namespace ls {

// LS_MODE_ANOMALY on the calling thread.
class AnomalyRegion {
 public:
  explicit AnomalyRegion(bool check_nan);
  ~AnomalyRegion();
  AnomalyRegion(const AnomalyRegion &) = delete;
  AnomalyRegion &operator=(const AnomalyRegion &) = delete;

 private:
  bool before_;
};

// What libtorch keeps with each node while a thread is in the mode.
std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata();

// Gives the nodes that wait on the calling thread their site.
void name_nodes(uint32_t site) noexcept;

// The failure of a node in a backward pass.
struct FailedNode : std::exception {
  std::exception_ptr cause;
  std::string node;
  uint32_t site = 0;  // LS_NO_SITE: the node was made outside of the mode
  bool nan = false;   // the cause is that the node returned NaN
  const char *what() const noexcept override { return "a node of the graph failed"; }
};

// Throws the exception that is being handled, as a FailedNode if a node threw it while the mode was on.
[[noreturn]] void rethrow_with_node();

}  // namespace ls

// What is known of an operator's results: the same operator, run by torch's own kernel on the host, where all that it is
// given is known; else what a healthy step has there.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace paper {

// What is the same for every call of an operator.
struct FollowedOperator {
  explicit FollowedOperator(const c10::OperatorHandle& handle);

  c10::OperatorHandle op;
  std::string name;          // `aten::add`, also of `add_`
  bool is_kernel = false;    // of CUDA's, not one that calls others
  bool calls_others = false;  // and does nothing else
  bool is_mutable = false;   // writes values: `detach_` and its kind write none
  bool is_computed = false;  // the host has a kernel, which gives the same for the same
  bool is_forgotten = false;  // what its kernel makes is known only if it is computed
  bool is_pointwise = false;
  bool is_in_python = false;  // its kernel, which is one of planner's
  bool has_rule = false;     // something is known of its results whatever it is given
  bool draws = false;        // numbers into its first argument
  bool is_python_asked = false;
  std::vector<bool> written, overwritten;  // by argument
};

// The kernel of this operator for CUDA is one of planner's in Python, which says itself what is known of its results.
void run_in_python(std::string name);

// One call of it.
class FollowedCall {
 public:
  // Before the kernel runs.
  FollowedCall(const FollowedOperator& followed, c10::ArrayRef<const c10::IValue> arguments);
  // After it has.
  void follow(const std::vector<c10::IValue>& results);

 private:
  std::vector<at::Tensor> written(const torch::jit::Stack& arguments) const;
  bool compute(const std::vector<at::Tensor>& returned);
  bool follow_uniform(const at::Tensor& made);
  void forget_all(const std::vector<at::Tensor>& returned);

  const FollowedOperator& of_;
  torch::jit::Stack arguments_;
  torch::jit::Stack before_;  // with what is written to on the host, as it was; empty if that is not known
  bool matters_ = false, is_followed_ = false;
};

}  // namespace paper

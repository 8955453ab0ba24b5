// Convolutions as CUDA runs them: cuDNN, and torch's own kernels for depthwise ones.
//
// torch's composite kernel chooses the backend and adds the bias; what follows the choice is here. Sources, torch 2.13:
// aten/src/ATen/native/cudnn/ConvShared.cpp, native/cuda/DepthwiseConv2d.cu and DepthwiseConv3d.cu.
#include "convolution.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>

#include <sstream>
#include <string>

#include "trace.h"
#include "workspaces.h"

namespace paper {
namespace {

using at::IntArrayRef;
using at::Tensor;

// What cuDNN is told besides the tensors.
struct Told {
  IntArrayRef padding, stride, dilation;
  int64_t groups;
  bool benchmark, deterministic, allow_tf32, transposed;

  std::string with(at::MemoryFormat format) const {
    std::ostringstream text;
    text << "padding=" << padding << " stride=" << stride << " dilation=" << dilation << " groups=" << groups
         << " layout=" << (format == at::MemoryFormat::Contiguous ? "channels_first" : "channels_last")
         << " benchmark=" << benchmark << " deterministic=" << deterministic << " tf32=" << allow_tf32
         << (transposed ? " transposed" : "");
    return text.str();
  }
};

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Tensor born(IntArrayRef sizes, const Tensor& like, at::MemoryFormat format) {
  return at::empty(sizes, like.options(), format);
}

Tensor cudnn_forward(const Tensor& input, const Tensor& weight, IntArrayRef padding, IntArrayRef stride,
                     IntArrayRef dilation, int64_t groups, bool benchmark, bool deterministic, bool allow_tf32) {
  const Told told{padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, false};
  OperatorScope scope("aten::cudnn_convolution");
  const auto format = at::native::cudnn_conv_suggest_memory_format(input, weight);
  const auto sizes = at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  Tensor output = born(sizes, input, format);
  if (output.numel() == 0) return output;
  const Tensor weight_copy = weight.contiguous(format);
  const Tensor input_copy = input.contiguous(format);
  const auto workspace =
      measured_workspace("cudnn", "cuDNN convolution, forward", {input, weight}, told.with(format));
  return output;
}

Tensor gradient_of_input(const Tensor& input, const Tensor& gradient, const Tensor& weight, const Told& told) {
  const auto format = at::native::cudnn_conv_suggest_memory_format(gradient, weight);
  Tensor result = born(input.sizes(), gradient, format);
  const Tensor weight_copy = weight.contiguous(format);
  const Tensor gradient_copy = gradient.contiguous(format);
  const auto workspace = measured_workspace("cudnn", "cuDNN convolution, gradient of its input",
                                            {gradient, input, weight}, told.with(format));
  return result;
}

Tensor gradient_of_weight(const Tensor& input, const Tensor& gradient, const Tensor& weight, const Told& told) {
  const auto format = at::native::cudnn_conv_suggest_memory_format(input, weight);
  const Tensor gradient_copy = gradient.contiguous(format);
  Tensor result = born(weight.sizes(), gradient, format);
  const Tensor input_copy = input.contiguous(format);
  const auto workspace = measured_workspace("cudnn", "cuDNN convolution, gradient of its weight",
                                            {gradient, input, weight}, told.with(format));
  return result;
}

Two cudnn_backward(const Tensor& input, const Tensor& gradient, const Tensor& weight, IntArrayRef padding,
                   IntArrayRef stride, IntArrayRef dilation, int64_t groups, bool benchmark, bool deterministic,
                   bool allow_tf32, std::array<bool, 2> wanted) {
  const Told told{padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, false};
  OperatorScope scope("aten::cudnn_convolution_backward");
  const Tensor copy = gradient.contiguous(input.suggest_memory_format());
  Tensor of_input, of_weight;
  if (wanted[0]) of_input = gradient_of_input(input, copy, weight, told);
  if (wanted[1]) of_weight = gradient_of_weight(input, copy, weight, told);
  return {of_input, of_weight};
}

Tensor cudnn_transpose(const Tensor& input, const Tensor& weight, IntArrayRef padding, IntArrayRef output_padding,
                       IntArrayRef stride, IntArrayRef dilation, int64_t groups, bool benchmark, bool deterministic,
                       bool allow_tf32) {
  const Told told{padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, true};
  OperatorScope scope("aten::cudnn_convolution_transpose");
  const auto sizes = at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride,
                                                 dilation, groups);
  const auto format = at::native::cudnn_conv_suggest_memory_format(input, weight);
  Tensor output = born(sizes, input, format);
  const Tensor weight_copy = weight.contiguous(format);
  const Tensor input_copy = input.contiguous(format);
  const auto workspace = measured_workspace("cudnn", "cuDNN transposed convolution, forward",
                                            {input, weight, output}, told.with(format));
  return output;
}

Two cudnn_transpose_backward(const Tensor& input, const Tensor& gradient, const Tensor& weight, IntArrayRef padding,
                             IntArrayRef, IntArrayRef stride, IntArrayRef dilation, int64_t groups, bool benchmark,
                             bool deterministic, bool allow_tf32, std::array<bool, 2> wanted) {
  const Told told{padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, true};
  OperatorScope scope("aten::cudnn_convolution_transpose_backward");
  const Tensor copy = gradient.contiguous(input.suggest_memory_format());
  Tensor of_input, of_weight;
  if (wanted[0]) of_input = gradient_of_input(input, copy, weight, told);
  if (wanted[1]) of_weight = gradient_of_weight(input, copy, weight, told);
  return {of_input, of_weight};
}

Tensor depthwise(const Tensor& input, const Tensor& weight, IntArrayRef, const std::optional<Tensor>&,
                 IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  OperatorScope scope("aten::_conv_depthwise");
  const Tensor input_copy = input.contiguous();
  const Tensor weight_copy = weight.contiguous();
  return at::empty(at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation),
                   input.options());
}

Two depthwise2d_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef, IntArrayRef,
                         IntArrayRef, IntArrayRef, std::array<bool, 2> wanted) {
  OperatorScope scope("aten::_conv_depthwise2d_backward");
  const Tensor copy = gradient.contiguous();
  Tensor of_input, of_weight;
  if (wanted[0]) {
    const Tensor weight_copy = weight.contiguous();
    of_input = at::empty(input.sizes(), gradient.options());
  }
  if (wanted[1]) {
    const Tensor input_copy = input.contiguous();
    of_weight = at::empty(weight.sizes(), gradient.options());
  }
  return {of_input, of_weight};
}

// Kernels that unfold the input into columns; a backward takes the columns of one sample at a time.
Three unfolding_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef kernel,
                         std::array<bool, 3> wanted) {
  OperatorScope scope("aten::slow_conv_backward");
  const Tensor gradient_copy = gradient.contiguous(), input_copy = input.contiguous();
  Tensor of_input, of_weight, of_bias;
  if (wanted[0]) of_input = at::empty(input.sizes(), gradient.options());
  if (wanted[1]) of_weight = at::empty(weight.sizes(), weight.options());
  if (wanted[2]) of_bias = at::empty({gradient.size(1)}, weight.options());
  int64_t positions = 1;
  for (int64_t dim = 2; dim < gradient.dim(); ++dim) positions *= gradient.size(dim);
  const Tensor columns = at::empty({input.size(1) * c10::multiply_integers(kernel), positions}, input.options());
  return {of_input, of_weight, of_bias};
}

Three dilated_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef kernel,
                       IntArrayRef, IntArrayRef, IntArrayRef, std::array<bool, 3> wanted) {
  return unfolding_backward(gradient, input, weight, kernel, wanted);
}

Three slow_transpose_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef kernel,
                              IntArrayRef, IntArrayRef, IntArrayRef, IntArrayRef, std::array<bool, 3> wanted) {
  return unfolding_backward(gradient, input, weight, kernel, wanted);
}

}  // namespace

void install_convolutions(torch::Library& aten) {
  aten.impl("cudnn_convolution", TORCH_FN(cudnn_forward));
  aten.impl("cudnn_convolution_transpose", TORCH_FN(cudnn_transpose));
  aten.impl("_conv_depthwise2d", TORCH_FN(depthwise));
  aten.impl("conv_depthwise3d", TORCH_FN(depthwise));
  using namespace at::native;
  cudnn_convolution_backward_stub.set_cuda_dispatch_ptr(&cudnn_backward);
  cudnn_convolution_transpose_backward_stub.set_cuda_dispatch_ptr(&cudnn_transpose_backward);
  conv_depthwise2d_backward_stub.set_cuda_dispatch_ptr(&depthwise2d_backward);
  conv_depthwise3d_backward_stub.set_cuda_dispatch_ptr(&dilated_backward);
  slow_conv_dilated2d_backward_stub.set_cuda_dispatch_ptr(&dilated_backward);
  slow_conv_dilated3d_backward_stub.set_cuda_dispatch_ptr(&dilated_backward);
  slow_conv_transpose2d_backward_stub.set_cuda_dispatch_ptr(&slow_transpose_backward);
  slow_conv_transpose3d_backward_stub.set_cuda_dispatch_ptr(&slow_transpose_backward);
}

}  // namespace paper

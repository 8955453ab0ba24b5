// Recurrent networks: on CUDA torch hands all of them to cuDNN, as one operator with one buffer of weights.
//
// Source: torch 2.13, aten/src/ATen/native/cudnn/RNN.cpp. The operator itself is planner/paper/kernels/recurrent.py.
#include "recurrent.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>

#include <string>
#include <unordered_map>

namespace paper {
namespace {

using at::Tensor;
using at::TensorList;

enum Mode : int64_t { kRelu, kTanh, kLstm, kGru };

struct Hidden {
  Tensor hx, cx;
};

// The weights lie in one buffer if the first of them lies at the start of a storage that ends with the last.
Tensor buffer_of(TensorList params) {
  const auto& storage = params[0].storage();
  size_t bytes = 0;
  for (const auto& param : params) {
    if (!param.storage().is_alias_of(storage)) return {};
    bytes += param.nbytes();
  }
  if (storage.nbytes() < bytes) return {};
  const auto size = static_cast<int64_t>(storage.nbytes() / params[0].element_size());
  return at::empty({0}, params[0].options()).set_(storage, 0, {size}, {1});
}

std::tuple<Tensor, Tensor, Tensor> run(const Tensor& input, const Hidden& hidden, TensorList params, bool has_biases,
                                       Mode mode, int64_t layers, double dropout, bool train, bool bidirectional,
                                       bool batch_first, at::IntArrayRef batch_sizes) {
  int64_t hidden_size = hidden.hx.size(2), projection = 0;
  if (hidden.cx.defined() && hidden.cx.size(2) != hidden.hx.size(2)) {
    hidden_size = hidden.cx.size(2);
    projection = hidden.hx.size(2);
  }
  const Tensor buffer = buffer_of(params);
  const int64_t stride = (has_biases ? 4 : 2) + (projection > 0 ? 1 : 0);
  auto results = at::_cudnn_rnn(input, params, stride, buffer.defined() ? std::make_optional(buffer) : std::nullopt,
                                hidden.hx, hidden.cx.defined() ? std::make_optional(hidden.cx) : std::nullopt, mode,
                                hidden_size, projection, layers, batch_first, dropout, train, bidirectional,
                                batch_sizes, std::nullopt);
  return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
}

template <Mode mode>
void rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& hx, TensorList params, bool has_biases,
         int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  std::tie(output, hy, std::ignore) =
      run(input, {hx, {}}, params, has_biases, mode, layers, dropout, train, bidirectional, batch_first, {});
}

void lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input, TensorList hx, TensorList params,
          bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  std::tie(output, hy, cy) =
      run(input, {hx[0], hx[1]}, params, has_biases, kLstm, layers, dropout, train, bidirectional, batch_first, {});
}

std::vector<int64_t> sizes_of(const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.is_cpu(), "batch sizes of packed sequences are on the host");
  const auto* begin = batch_sizes.const_data_ptr<int64_t>();
  return {begin, begin + batch_sizes.numel()};
}

template <Mode mode>
void packed_rnn(Tensor& output, Tensor& hy, const Tensor& data, const Tensor& batch_sizes, const Tensor& hx,
                TensorList params, bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  std::tie(output, hy, std::ignore) = run(data, {hx, {}}, params, has_biases, mode, layers, dropout, train,
                                          bidirectional, false, sizes_of(batch_sizes));
}

void packed_lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& data, const Tensor& batch_sizes, TensorList hx,
                 TensorList params, bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  std::tie(output, hy, cy) = run(data, {hx[0], hx[1]}, params, has_biases, kLstm, layers, dropout, train,
                                 bidirectional, false, sizes_of(batch_sizes));
}

}  // namespace

void install_recurrent_networks(torch::Library&) {
  using namespace at::native;
  lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  gru_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kGru>);
  rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kTanh>);
  rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&rnn<kRelu>);
  lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_lstm);
  gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<kGru>);
  rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<kTanh>);
  rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&packed_rnn<kRelu>);
}

}  // namespace paper

// The number of a mode by the name that torch gives it (`LSTM`); -1 if there is none. Nobody but the paper GPU counts so:
// the enumeration of cuDNN itself is in no header here.
extern "C" int64_t paper_rnn_mode(const char* name) {
  static const std::unordered_map<std::string, paper::Mode> modes{
      {"RNN_RELU", paper::kRelu}, {"RNN_TANH", paper::kTanh}, {"LSTM", paper::kLstm}, {"GRU", paper::kGru}};
  const auto found = modes.find(name);
  return found == modes.end() ? -1 : found->second;
}

// Recurrent networks of cuDNN: its older API, whose sizes take a handle and have no deviceless way. How its weights lie
// is arithmetic; of its reserve is counted what a backward cannot do without, and the rest is named.
#include <cstdint>
#include <numeric>
#include <vector>

#include "real_cudnn.h"
#include "shared.h"

static const char* const RECURRENT = "cuDNN recurrent network";

namespace {

struct Network {
  cudnnRNNMode_t mode;
  cudnnRNNBiasMode_t bias;
  cudnnDataType_t type;
  bool bidirectional;
  int64_t input, hidden, projection, layers;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t gates() const { return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1; }
  int64_t recurrent() const { return projection; }  // what a step hands to the next: without a projection, hidden
  // A gate's matrix, by the direction of a layer: of its input, of the step before.
  int64_t columns(int64_t pseudo_layer, bool of_input) const {
    if (!of_input) return recurrent();
    return pseudo_layer < directions() ? input : recurrent() * directions();
  }
  int64_t of_gates(int64_t pseudo_layer) const {
    return gates() * hidden * (columns(pseudo_layer, true) + columns(pseudo_layer, false));
  }
  int64_t matrices(int64_t pseudo_layer) const {
    return of_gates(pseudo_layer) + (projection == hidden ? 0 : projection * hidden);
  }
  int64_t biases() const {  // of one direction of a layer, in gates
    return bias == CUDNN_RNN_NO_BIAS ? 0 : bias == CUDNN_RNN_DOUBLE_BIAS ? 2 * gates() : gates();
  }
  int64_t pseudo_layers() const { return layers * directions(); }
  int64_t all_matrices(int64_t before) const {
    int64_t sum = 0;
    for (int64_t layer = 0; layer < before; layer++) sum += matrices(layer);
    return sum;
  }
  size_t bytes(int64_t elements) const {
    return elements * (type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2);
  }
};

Network read(cudnnRNNDescriptor_t described) {
  cudnnRNNAlgo_t algorithm;
  cudnnDirectionMode_t direction;
  cudnnRNNInputMode_t input_mode;
  cudnnDataType_t precision;
  cudnnMathType_t math;
  cudnnDropoutDescriptor_t dropout;
  int32_t input, hidden, projection, layers;
  uint32_t flags;
  Network network;
  REAL(cudnnGetRNNDescriptor_v8)(described, &algorithm, &network.mode, &network.bias, &direction, &input_mode,
                                 &network.type, &precision, &math, &input, &hidden, &projection, &layers, &dropout,
                                 &flags);
  network.bidirectional = direction == CUDNN_BIDIRECTIONAL;
  network.input = input, network.hidden = hidden, network.projection = projection, network.layers = layers;
  return network;
}

void describe(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rows, int columns) {
  const int sizes[] = {1, rows, columns}, strides[] = {rows * columns, columns, 1};
  REAL(cudnnSetTensorNdDescriptor)(tensor, type, 3, sizes, strides);
}

}  // namespace

API cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t described, size_t* bytes) {
  const auto network = read(described);
  const auto layers = network.pseudo_layers();
  *bytes = network.bytes(network.all_matrices(layers) + layers * network.biases() * network.hidden);
  return CUDNN_STATUS_SUCCESS;
}

// All matrices lie before all biases; gates follow each other, those of the input first, the projection last.
API cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t described, int32_t pseudo_layer, size_t,
                                          const void* space, int32_t linear, cudnnTensorDescriptor_t matrix,
                                          void** matrix_address, cudnnTensorDescriptor_t bias, void** bias_address) {
  const auto network = read(described);
  const auto gates = network.gates(), hidden = network.hidden;
  const auto of_input = gates * hidden * network.columns(pseudo_layer, true);
  const bool is_projection = linear == 2 * gates, is_input = linear < gates;
  const auto columns = is_projection ? hidden : network.columns(pseudo_layer, is_input);
  const auto rows = is_projection ? network.projection : hidden;
  auto offset = network.all_matrices(pseudo_layer);
  if (is_projection)
    offset += network.of_gates(pseudo_layer);
  else
    offset += is_input ? linear * hidden * columns : of_input + (linear - gates) * hidden * columns;
  if (matrix_address) {  // torch asks for one or for the other
    *matrix_address = (char*)space + network.bytes(offset);
    describe(matrix, network.type, (int)rows, (int)columns);
  }
  if (bias_address) {
    const bool has_bias = !is_projection && linear < network.biases();
    offset = network.all_matrices(network.pseudo_layers()) + (pseudo_layer * network.biases() + linear) * hidden;
    *bias_address = has_bias ? (char*)space + network.bytes(offset) : nullptr;
    if (has_bias) describe(bias, network.type, (int)hidden, 1);
  }
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t described, cudnnForwardMode_t mode,
                                            cudnnRNNDataDescriptor_t data, size_t* workspace, size_t* reserve) {
  const auto network = read(described);
  cudnnDataType_t type;
  cudnnRNNDataLayout_t layout;
  int longest = 0, batch = 0, width = 0;
  double padding;  // the largest that it may be
  std::vector<int> lengths(1);
  const auto read_lengths = [&](int count) {
    return REAL(cudnnGetRNNDataDescriptor)(data, &type, &layout, &longest, &batch, &width, count, lengths.data(),
                                           &padding);
  };
  if (const auto error = read_lengths(0)) return error;
  lengths.resize(batch);
  if (const auto error = read_lengths(batch)) return error;
  const auto steps = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t kept = network.mode == CUDNN_LSTM  ? 5
                       : network.mode == CUDNN_GRU ? 4
                                                   : 1;  // gates, and the cell's state
  *workspace = 0;
  if (reserve)
    *reserve =
        mode == CUDNN_FWD_MODE_TRAINING ? network.bytes(steps * network.hidden * network.pseudo_layers() * kept) : 0;
  return (cudnnStatus_t)paper_unknown(RECURRENT, CUDNN_STATUS_SUCCESS);
}

// Takes a handle, and would draw numbers.
API cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void*, size_t,
                                            unsigned long long) {
  return CUDNN_STATUS_SUCCESS;
}

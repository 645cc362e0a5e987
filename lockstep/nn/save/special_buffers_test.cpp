#include "lockstep/nn/save/save.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/sgd.h>

#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/named_tensors.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/zoo.h"

// Buffers that are sparse, 8-bit or without their own memory.
namespace lockstep {
namespace {

using torch::optim::SGDOptions;

// Sparse buffers are constants of the module.

struct Graph : torch::nn::Module {
  Graph(bool is_compressed, const at::Tensor& dense) {
    edges = register_buffer("edges", is_compressed ? dense.to_sparse_csr() : dense.to_sparse());
    scale = register_parameter("scale", torch::ones({3, 1}));
  }
  at::Tensor loss(const at::Tensor& x) { return edges.matmul(x * scale).sum(); }
  at::Tensor edges, scale;
};

TEST(SparseBuffer, IsComparedAndCopiedButNeverAveraged) {
  for (const bool is_compressed : {false, true}) {
    SCOPED_TRACE(is_compressed ? "CSR" : "COO");
    const TemporaryFolder folder;
    MirroredStrategy strategy(on_devices(2));
    int calls = 0;
    auto model = strategy.make([&] { return std::make_shared<Graph>(is_compressed, torch::eye(3) * ++calls); });
    const auto expect_diagonal = [&](float value) {
      for (std::size_t k = 0; k < 2; ++k)
        EXPECT_TRUE(model.replica(k)->edges.to_dense().equal(torch::eye(3) * value)) << "replica " << k;
      EXPECT_TRUE(model.named_buffers()["edges"].to_dense().equal(torch::eye(3) * value));
    };
    expect_diagonal(1);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
    strategy.run([&] { optimizer.minimize(model->loss(torch::ones({3, 2}))); });
    model.update([](Graph& graph) { graph.scale.zero_(); });
    expect_diagonal(1);
    model.update([](Graph& graph) { graph.edges.mul_(5); });
    expect_diagonal(5);
    model.replica(1)->edges.mul_(2);
    model.synchronize_buffers();
    expect_diagonal(5);
    expect_error([&] { save(folder / "x", model); }, Code::Unimplemented, errors::kSafetensors,
                 {"'edges'", "layout is Sparse", "plain member", "register_buffer(name, tensor.to_dense())"});
    save(folder / "x", Tensors{{"scale", torch::full({3, 1}, 7.0)}});
    load(folder / "x", model);
    EXPECT_EQ(model->scale[0].item<float>(), 7);
    expect_diagonal(5);
  }
}

TEST(SparseBuffer, OfAnotherNumberOfElementsIsCopiedToo) {
  for (const bool is_compressed : {false, true}) {
    SCOPED_TRACE(is_compressed ? "CSR" : "COO");
    MirroredStrategy strategy(on_devices(2));
    int calls = 0;
    auto model = strategy.make([&] {
      return std::make_shared<Graph>(is_compressed, ++calls == 1 ? torch::eye(3) : torch::ones({3, 3}));
    });
    EXPECT_TRUE(model.replica(1)->edges.to_dense().equal(torch::eye(3)));
  }
}

TEST(ABufferWithoutMemoryOfItsOwn, CanBeSynchronizedWhereItIsAConstant) {
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<Zoo>();
  strategy.run([&] { model->mean.fill_(my_id()); });
  model.synchronize_buffers();
  EXPECT_EQ(model.replica(1)->mean[0].item<float>(), 0.5);
}

struct WithFloat8 : torch::nn::Module {
  WithFloat8() { register_buffer("scale", torch::full({2}, 0.5).to(at::kFloat8_e4m3fn)); }
};

TEST(SaveAndLoad, BuffersOfEightBitsAreSavedToo) {
  MirroredStrategy strategy(on_devices(2));
  auto model = strategy.make<WithFloat8>();
  const TemporaryFolder folder;
  save(folder / "model", model);
  auto other = strategy.make<WithFloat8>();
  other.update([](WithFloat8& net) { net.named_buffers()["scale"].copy_(torch::ones({2})); });
  load(folder / "model", other);
  EXPECT_TRUE(other.named_buffers()["scale"].to(at::kFloat).equal(torch::full({2}, 0.5)));
}

}  // namespace
}  // namespace lockstep

// A small training in plain LibTorch: fits a sum of sines. train_lockstep.cpp is the same on two replicas.

#include <torch/torch.h>

#include <iostream>

struct Rows {
  torch::Tensor x, y;
};

Rows make_rows(int part, int parts) {
  const auto x = torch::linspace(-3, 3, 1024).reshape({512, 2}).chunk(parts)[part];
  return {x, torch::sin(x).sum(1, /*keepdim=*/true)};
}

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

void train(torch::nn::Sequential net) {
  const Rows rows = make_rows(0, 1);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step <= 200; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(rows.x), rows.y);
    loss.backward();
    optimizer.step();
    if (step % 50 != 0) continue;
    std::cout << "step " << step << ": " << loss.item<float>() << "\n";
  }
}

int main() {
  auto net = make_net();
  train(net);
}

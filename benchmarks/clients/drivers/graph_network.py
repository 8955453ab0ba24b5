"""PyG's graph convolutions over one graph."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT

graph = Data(x=torch.randn(200, 16), edge_index=torch.randint(0, 200, (2, 1000)), y=torch.randint(0, 4, (200,))).to(
    "cuda"
)
model = GAT(16, 32, num_layers=2, out_channels=4, heads=4).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    optimizer.zero_grad()
    scores = model(graph.x, graph.edge_index)
    loss = torch.nn.functional.cross_entropy(scores, graph.y)
    loss.backward()
    optimizer.step()
    print(float(loss), float((scores.argmax(-1) == graph.y).float().mean()))

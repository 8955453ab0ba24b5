"""skorch's classifier, as of scikit-learn."""

import numpy
import torch
from skorch import NeuralNetClassifier

network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2), torch.nn.Softmax(-1))
net = NeuralNetClassifier(network, max_epochs=3, lr=0.1, device="cuda", iterator_train__shuffle=True)
net.fit(numpy.random.randn(256, 20).astype("float32"), numpy.random.randint(0, 2, 256))

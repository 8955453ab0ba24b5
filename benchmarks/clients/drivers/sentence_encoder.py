"""sentence-transformers' trainer on pairs of sentences."""

import sys

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer

word = Transformer(sys.argv[1], max_seq_length=32)
model = SentenceTransformer(modules=[word, Pooling(word.get_word_embedding_dimension())])
pairs = Dataset.from_dict({name: [f"w{n} w{n + 1} w3" for n in range(128)] for name in ("anchor", "positive")})
arguments = SentenceTransformerTrainingArguments(output_dir="out", per_device_train_batch_size=8, report_to=[])
SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
).train()

"""Four LoRA adapters of one base model, collected along one training, as an ensemble.

Run it with `python examples/lora_ensemble.py`; it takes a few seconds and downloads nothing: the base is a
small BERT with random weights, and a sentence's class is the token that it has most often.
"""

import tempfile
from pathlib import Path

import torch
from bert_in_the_trainer import Sentences, make_model
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification

import pfge
from pfge.integrations.peft import load_adapters, save_adapters


def make_base() -> BertForSequenceClassification:
    torch.manual_seed(0)  # in place of BertForSequenceClassification.from_pretrained(...)
    return make_model()


def main() -> None:
    train, test = Sentences(512, seed=1), Sentences(256, seed=2)
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"])
    model = get_peft_model(make_base(), config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    collector = pfge.PFGE(cycle=8, period=32)
    trajectory = pfge.Trajectory(model, optimizer, pfge.Triangular(8, 1e-3, 1e-2), [collector])
    pfge.follow(
        trajectory,
        DataLoader(train, batch_size=16, shuffle=True),
        lambda model, batch: model(**batch).loss,
        iterations=128,
    )
    ensemble = pfge.Ensemble.from_collector(collector, lambda: model)
    inputs = {"input_ids": test.tokens}
    with tempfile.TemporaryDirectory() as folder:
        save_adapters(ensemble, folder)
        files = [file for file in Path(folder).rglob("*") if file.is_file()]
        base = sum(tensor.nbytes for tensor in make_base().state_dict().values())
        print(f"{len(ensemble)} adapters in {sum(file.stat().st_size for file in files):,} bytes on disk,")
        print(f"beside a base of {base:,} bytes that is not saved")
        loaded = load_adapters(folder, make_base())
        probabilities = loaded.predict(inputs)
        print(f"accuracy {pfge.metrics.accuracy(probabilities, test.labels):.1%}")
        print(f"in a new base, they predict the same: {torch.equal(probabilities, ensemble.predict(inputs))}")

        # Each member is an adapter that peft itself loads.
        (first,) = Path(folder).glob("adapter-1-*")
        member = PeftModel.from_pretrained(make_base(), str(first)).eval()
        with torch.no_grad():
            alone = member(**inputs).logits.softmax(dim=1)
        print(f"the first adapter alone: {pfge.metrics.accuracy(alone, test.labels):.1%}")


if __name__ == "__main__":
    main()

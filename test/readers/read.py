"""What one program makes of models:  read.py PROGRAM < request.json > answer.json

Asks for the log-probabilities behind prefixes of tokens, the tokens of texts, and the text that follows prompts when
each token is the most likely one. A program answers what it can; a model that it does not open has an error instead.
"""

import contextlib
import json
import os
import sys
import tempfile
import urllib.request


def transformers(folder, prefixes, texts, prompts, length):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def following(prompt):
        start = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**start, max_new_tokens=length, do_sample=False)[0][start["input_ids"].shape[1]:]
        return tokenizer.decode(made, skip_special_tokens=True)

    with torch.no_grad():
        logs = [model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).tolist() for ids in prefixes]
    return {"logs": logs, "tokens": [tokenizer(text)["input_ids"] for text in texts],
            "following": [following(prompt) for prompt in prompts]}


def mlx_lm(folder, prefixes, texts, prompts, length):
    import mlx.core as mx
    import mlx_lm
    import numpy

    model, tokenizer = mlx_lm.load(folder)
    logits = [numpy.array(model(mx.array([ids]))[0, -1].astype(mx.float32)) for ids in prefixes]
    return {"logs": [log_softmax(row) for row in logits], "tokens": [tokenizer.encode(text) for text in texts]}


def ctranslate2(folder, prefixes, texts, prompts, length):
    import ctranslate2
    import numpy

    with tempfile.TemporaryDirectory() as made:
        ctranslate2.converters.TransformersConverter(folder).convert(made, force=True)
        model = ctranslate2.Generator(made, compute_type="float32", intra_threads=1)
        logits = [numpy.array(model.forward_batch([ids]))[0, -1] for ids in prefixes]
    return {"logs": [log_softmax(row) for row in logits]}


def llama_cpp(path, prefixes, texts, prompts, length):
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads, settings.warmup = 128, 1, 1, False
    # Its defaults round keys, values and attention's sums to half.
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)

    def complete(prompt, **how):
        how = {"prompt": prompt, "temperature": 0, "cache_prompt": False, **how}
        return server.handle_completions(how)["choices"][0]

    def tokens_of(text):
        body = json.dumps({"content": text, "add_special": True, "parse_special": False}).encode()
        request = urllib.request.Request(f"{server.listening_address}/tokenize", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    logs = []
    for ids in prefixes:
        top = complete(ids, n_predict=1, n_probs=100_000)["logprobs"]["content"][0]["top_logprobs"]
        logs.append([entry["logprob"] for entry in sorted(top, key=lambda entry: entry["id"])])
    return {"logs": logs, "tokens": [tokens_of(text) for text in texts],
            "following": [complete(prompt, n_predict=length)["text"] for prompt in prompts]}


def mistral_rs(folder, prefixes, texts, prompts, length):
    import mistralrs

    runner = mistralrs.Runner(mistralrs.Which.Plain(model_id=folder, dtype=mistralrs.ModelDType.F32))
    requests = [mistralrs.CompletionRequest(model="default", prompt=prompt, max_tokens=length, temperature=0)
                for prompt in prompts]
    return {"following": [runner.send_completion_request(request).choices[0].text for request in requests]}


def log_softmax(row):
    import numpy

    row = row.astype(numpy.float64)
    return (row - row.max() - numpy.log(numpy.exp(row - row.max()).sum())).tolist()


def main():
    program = globals()[sys.argv[1]]
    request = json.load(sys.stdin)
    models, answers = request.pop("models"), {}
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # what programs print themselves
        for name, path in models.items():
            try:
                answers[name] = program(path, **request)
            except BaseException as error:  # mistral.rs raises pyo3's PanicException
                answers[name] = {"error": f"{type(error).__name__}: {error}"}
        json.dump(answers, output)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # servers have threads


if __name__ == "__main__":
    main()

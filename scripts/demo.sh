#!/bin/bash
# Runs `make demo`: trains a small model with AdamW, Muon and Teon on the corpus of scripts/make_corpus.py and compares
# the results.
#
#   MODEL=llama scripts/demo.sh      the small LLaMA instead of the small GPT-2
#   DEMO_STEPS=30 scripts/demo.sh    shorter runs; they must end below a unigram model instead of a bigram model
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python

model=${MODEL:-gpt2}
[ -e "train_$model.cu" ] || {
    models=$(ls train_*.cu | sed 's/train_//; s/\.cu//' | paste -sd ' ')
    echo "demo: error: MODEL=$model: no such model; the models are $models" >&2
    exit 2
}

corpus=build/corpus
[ -e $corpus/manifest.json ] || $python scripts/make_corpus.py $corpus

steps=${DEMO_STEPS:-200}
baseline=bigram
[ -z "${DEMO_STEPS:-}" ] || baseline=unigram
folder=runs/demo-$model-$(date +%Y%m%d-%H%M%S)

shown=
# train OPTIMIZER FLAGS...: shows the start report of the first run only. sed ignores Ctrl-C to show how the run ends.
train() {
    echo "== $1"
    ./train_"$model" --model tiny --seq-len 128 --data $corpus --batch-tokens 2048 --steps "$steps" --optimizer "$@" \
        --eval-every $(((steps + 5) / 6)) --eval-tokens 32768 --log-every $(((steps + 9) / 10)) --out "$folder/$1" |
        (trap '' INT; exec sed -u "$shown")
    shown='1,/^run  /d'
}
train adamw --lr 3e-3
train muon --lr 0.02 --adamw-lr 3e-3 --diagnose-every $(((steps + 9) / 10))
train teon --lr 0.02 --adamw-lr 3e-3 --diagnose-every $(((steps + 9) / 10))
echo
$python scripts/demo_report.py --baselines $corpus/baselines.json --must-beat $baseline "$folder"/{adamw,muon,teon}
echo
$python scripts/compare.py "$folder"/{adamw,muon,teon} --out "$folder"/compare
echo
prompt="def __init__(self"
echo "== ./generate --checkpoint $folder/teon --prompt '$prompt'"
./generate --checkpoint "$folder/teon" --prompt "$prompt" --sample-tokens 100 --temperature 0.7 --seed 1

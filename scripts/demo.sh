#!/bin/bash
# What `make demo` runs: trains a small GPT-2 on the corpus of scripts/make_corpus.py and shows what it learned.
#
#   scripts/demo.sh                  must end below the validation loss of a bigram model
#   DEMO_STEPS=30 scripts/demo.sh    a shorter run; must end below that of a unigram model
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python

corpus=build/corpus
[ -e $corpus/manifest.json ] || $python scripts/make_corpus.py $corpus

steps=${DEMO_STEPS:-600}
baseline=bigram
[ -z "${DEMO_STEPS:-}" ] || baseline=unigram
out=runs/demo-adamw-$(date +%Y%m%d-%H%M%S)
./train_gpt2 --model tiny --seq-len 256 --data $corpus \
    --optimizer adamw --lr 3e-3 --batch-tokens 4096 --steps "$steps" \
    --eval-every $(((steps + 3) / 4)) --eval-tokens 65536 --log-every 10 --out "$out"
$python scripts/demo_report.py --baselines $corpus/baselines.json --must-beat $baseline "$out"

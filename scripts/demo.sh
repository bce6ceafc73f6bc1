#!/bin/bash
# Runs `make demo`: trains a small model with AdamW, Muon and Teon on plays of Shakespeare, compares the three and
# prints what the last one writes.
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

steps=${DEMO_STEPS:-500}
baseline=bigram
[ -z "${DEMO_STEPS:-}" ] || baseline=unigram
folder=runs/demo-$model-$(date +%Y%m%d-%H%M%S)

show() {
    echo "== $*"
    "$@"
}

corpus=build/shakespeare
sample=145  # 400 characters
if ! [ -e $corpus/manifest.json ] && ! show "$python" scripts/prepare.py experiments/shakespeare.txt \
    --tokenizer train:4096 --out $corpus; then
    echo "demo: continuing with a token for each byte"
    corpus=build/corpus
    [ -e $corpus/manifest.json ] || "$python" dev/make_corpus.py $corpus
fi

flags=(--model tiny --layers 2 --seq-len 128 --batch-tokens 2048 --steps "$steps")
shown=
# train OPTIMIZER FLAGS...: shows the start report of the first run only. sed ignores Ctrl-C to show how the run ends.
train() {
    echo "== $1"
    ./train_"$model" --data $corpus "${flags[@]}" --optimizer "$@" \
        --eval-every $(((steps + 5) / 6)) --eval-tokens 32768 --log-every $(((steps + 9) / 10)) --out "$folder/$1" |
        (trap '' INT; exec sed -u "$shown")
    shown='1,/^run  /d'
}
train adamw --lr 2e-3
train muon --lr 0.02 --adamw-lr 1e-2 --diagnose-every $(((steps + 9) / 10))
train teon --lr 0.02 --adamw-lr 1e-2 --diagnose-every $(((steps + 9) / 10))
"$python" scripts/demo_report.py --data $corpus --must-beat $baseline "$folder"/{adamw,muon,teon}
echo
"$python" scripts/compare.py "$folder"/{adamw,muon,teon}
echo
show ./generate --checkpoint "$folder/teon" --prompt ROMEO: --sample-tokens $sample --temperature 0.5 --seed 5
cat <<END

Your own text (docs/tutorial.md explains the steps):
    python3 scripts/prepare.py FILE.txt --tokenizer train:4096 --out datasets/mine
    ./train_$model --data datasets/mine ${flags[*]} --optimizer teon --lr 0.02 --adamw-lr 1e-2 --out runs/mine
    ./generate --checkpoint runs/mine --prompt "The" --temperature 0.5
END

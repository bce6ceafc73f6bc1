#!/bin/bash
# What `make gpu-check` runs on a machine with an NVIDIA GPU, within 8 minutes and without installing anything: builds, runs
# every test on the GPU, kernel tests under compute-sanitizer, the demos, and 20 steps each of GPT-2 124M (AdamW) and LLaMA 130M (Teon).
# Ends with a table of both; where their time went, kernel by kernel, is in build/gpu-check/*/profile.txt.
# Headers that the machine lacks may lie in build/deps/include (`make deps-headers` elsewhere) or be named by DEPS_INCLUDE.
set -uo pipefail
cd "$(dirname "$0")/.."
export BACKEND=cuda SETUP=0
[ -d build/deps/include ] && export DEPS_INCLUDE=${DEPS_INCLUDE:-$PWD/build/deps/include}

budget=470
logs=build/gpu-check
mkdir -p $logs
rows=()
failed=0

# check NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds, and never beyond the budget.
check() {
    local name=$1 limit=$2 start=$SECONDS left=$((budget - SECONDS)) result detail
    shift 2
    [ "$left" -gt 5 ] || { rows+=("$name|not run|0|the time was used up"); failed=1; return 1; }
    echo "== $name"
    if timeout -k 5 $((limit < left ? limit : left)) "$@" >$logs/"$name".log 2>&1; then result=ok; else result=FAILED; fi
    detail=$(grep -E '[0-9]+ passed, [0-9]+ failed' $logs/"$name".log | tail -1)
    [ $result = ok ] || { failed=1; tail -30 $logs/"$name".log; detail="${detail:+$detail; }log: $logs/$name.log"; }
    rows+=("$name|$result|$((SECONDS - start))|$detail")
    [ $result = ok ]
}

skip() { rows+=("$1|skipped|0|$2"); }

sanitizer=$(command -v compute-sanitizer || ls "$(dirname "$(scripts/find_cuda.sh nvcc)")"/compute-sanitizer 2>/dev/null)

# pretrain NAME PROGRAM FLAGS...: 20 steps, and the GPU's memory in use before and during them, in MiB.
pretrain() {
    local name=$1 program=$2 sampler status=0
    shift 2
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >$logs/"$name".memory &
    sampler=$!
    sleep 0.5
    rm -rf $logs/"$name"
    ./"$program" --dtype bf16 --data build/corpus --batch-tokens 524288 --steps 20 --eval-tokens 65536 \
        --profile-steps 18:19 --out $logs/"$name" "$@" || status=$?
    kill $sampler
    return $status
}
export -f pretrain
export logs

if check build 240 make all build/cuda/tests; then
    check tests 180 python3 scripts/run_tests.py build/cuda/tests test/test_*.py --jobs 4
    check demo 90 make demo
    check demo-llama 60 make demo MODEL=llama DEMO_STEPS=60
    check gpt2-124m 80 bash -c 'pretrain gpt2-124m train_gpt2 --model small --vocab-size 50257'
    check llama-130m 80 bash -c 'pretrain llama-130m train_llama --model 130m --vocab-size 32000 --optimizer teon --lr 5e-3'
    if [ -n "$sanitizer" ]; then
        check compute-sanitizer 240 python3 scripts/run_tests.py build/cuda/tests --only kernels/ --jobs 6 \
            --wrap "$sanitizer --tool memcheck --error-exitcode 9"
    else
        skip compute-sanitizer "not installed here"
    fi
fi

printf '\n%-18s %-8s %8s  %s\n' check result seconds ""
for row in "${rows[@]}"; do
    IFS='|' read -r name result seconds detail <<<"$row"
    printf '%-18s %-8s %8s  %s\n' "$name" "$result" "$seconds" "$detail"
done
python3 scripts/gpu_report.py $logs gpt2-124m llama-130m
exit $failed

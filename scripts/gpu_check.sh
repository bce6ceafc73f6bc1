#!/bin/bash
# Runs `make gpu-check` on a machine with an NVIDIA GPU, without installing anything: the build, every test on the GPU
# (including tests of several ranks if there are several GPUs), the demos, 20 steps each of GPT-2 124M (AdamW) and LLaMA
# 130M (Teon), kernel tests under compute-sanitizer's memcheck, racecheck and synccheck, and the program tests.
#
#   scripts/gpu_check.sh                   everything, about 25 minutes
#   scripts/gpu_check.sh build tests       only these parts, for a machine with a time limit
#
# Parts: build tests demo train memcheck racecheck synccheck programs. Ends with a table; build/gpu-check/*/profile.txt
# has the time of training by kernel. Missing headers can be in build/deps/include (`make deps-headers` on another
# machine) or in DEPS_INCLUDE.
set -uo pipefail
cd "$(dirname "$0")/.."
export BACKEND=cuda SETUP=0
[ -d build/deps/include ] && export DEPS_INCLUDE=${DEPS_INCLUDE:-$PWD/build/deps/include}

logs=build/gpu-check
parts=" ${*:-build tests demo train memcheck racecheck synccheck programs} "
mkdir -p $logs
rows=()
failed=0

# check NAME LIMIT COMMAND...: runs the command for at most LIMIT seconds.
check() {
    local name=$1 limit=$2 start=$SECONDS result detail
    shift 2
    echo "== $name"
    if timeout -k 5 "$limit" "$@" >$logs/"$name".log 2>&1; then result=ok; else result=FAILED; fi
    detail=$(grep -E '[0-9]+ passed, [0-9]+ failed' $logs/"$name".log | tail -1)
    [ $result = ok ] || { failed=1; tail -30 $logs/"$name".log; detail="${detail:+$detail; }log: $logs/$name.log"; }
    rows+=("$name|$result|$((SECONDS - start))|$detail")
    [ $result = ok ]
}

skip() { rows+=("$1|skipped|0|$2"); }

eval "nvcc=$(scripts/find_cuda.sh nvcc)"
sanitizer=$(command -v compute-sanitizer || ls "$(dirname "$nvcc")"/compute-sanitizer 2>/dev/null)

# pretrain NAME PROGRAM FLAGS...: runs 20 steps and samples the GPU's used memory, in MiB, before and during them.
pretrain() {
    local name=$1 program=$2 gpu=${CUDA_VISIBLE_DEVICES:-0} sampler status=0
    shift 2
    [ -e build/corpus/manifest.json ] || python3 scripts/make_corpus.py build/corpus
    nvidia-smi --id="${gpu%%,*}" --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >$logs/"$name".memory &
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

wanted() { [[ $parts == *" $1 "* ]]; }

# sanitize TOOL: runs the kernel tests under one of compute-sanitizer's tools.
sanitize() {
    wanted "$1" || return 0
    [ -n "$sanitizer" ] || { skip "$1" "compute-sanitizer is not installed here"; return; }
    check "$1" 400 python3 scripts/run_tests.py build/cuda/tests --only kernels/ --jobs 6 \
        --wrap "$sanitizer --tool $1 --error-exitcode 9"
}

# All other parts need the build. `programs` is slow: its tests start hundreds of programs, at 1 to 2 s each on a GPU.
if ! wanted build || check build 400 make all build/cuda/tests; then
    wanted tests && check tests 300 python3 scripts/run_tests.py build/cuda/tests --jobs 4
    wanted demo && check demo 90 make demo
    wanted demo && check demo-llama 60 make demo MODEL=llama DEMO_STEPS=60
    wanted train && check gpt2-124m 80 bash -c 'pretrain gpt2-124m train_gpt2 --model small --vocab-size 50257'
    wanted train && check llama-130m 80 \
        bash -c 'pretrain llama-130m train_llama --model 130m --vocab-size 32000 --optimizer teon --lr 5e-3'
    for tool in memcheck racecheck synccheck; do sanitize $tool; done
    wanted programs && check programs 1500 \
        env TEON_BUILD=build/cuda python3 scripts/run_tests.py test/*/test_*.py --timeout 1400
fi

printf '\n%-18s %-8s %8s  %s\n' check result seconds ""
for row in "${rows[@]}"; do
    IFS='|' read -r name result seconds detail <<<"$row"
    printf '%-18s %-8s %8s  %s\n' "$name" "$result" "$seconds" "$detail"
done
wanted train && python3 scripts/gpu_report.py $logs gpt2-124m llama-130m
exit $failed

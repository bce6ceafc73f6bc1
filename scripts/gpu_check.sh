#!/bin/bash
# What `make gpu-check` runs on a machine with an NVIDIA GPU, within 8 minutes and without installing anything: builds, runs
# every test on the GPU, kernel tests under compute-sanitizer, the demo, and 20 steps of GPT-2 124M. Prints one table.
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

train_124m() {
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >$logs/memory.txt &
    local sampler=$! status=0
    sleep 0.5
    ./train_gpt2 --model small --dtype bf16 --vocab-size 50257 --data build/corpus --batch-tokens 524288 --steps 20 --eval-tokens 65536 \
        --out runs/gpu-check-124m-"$(date +%Y%m%d-%H%M%S)" || status=$?
    kill $sampler
    return $status
}
export -f train_124m
export logs

if check build 240 make all build/cuda/tests; then
    check tests 180 python3 scripts/run_tests.py build/cuda/tests test/test_*.py --jobs 4
    check demo 90 make demo
    check gpt2-124m 90 bash -c train_124m
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
run=$(ls -dt runs/gpu-check-124m-* 2>/dev/null | head -1)
[ -z "$run" ] || python3 scripts/gpu_report.py "$run" $logs/gpt2-124m.log $logs/memory.txt
exit $failed

#!/bin/bash
# Guess: SIGTERM to mpirun reaches the ranks at once, and mpirun waits until they have saved and ended. SIGINT reaches
#        them as SIGINT.
# Seen:  the ranks get SIGCONT at once, SIGTERM one second later, also where mpirun got SIGINT, and SIGKILL a second
#        after that. A rank that needs two seconds to write its checkpoint loses it. Send signals to the ranks
#        themselves.
# Known: Open MPI 4.1.4 of Debian 12; other versions not run. Found by testing how runs of several ranks end.
. "$(dirname "$0")/lib.sh"
[ "$(dpkg-query -W -f '${Version}' openmpi-bin 2>/dev/null)" = 4.1.4-3+b1 ] ||
    fail "not run: needs openmpi-bin 4.1.4-3+b1 of Debian 12 (apt-get install openmpi-bin)"
echo "$name: Open MPI $(dpkg-query -W -f '${Version}' openmpi-bin)"
cat >rank.sh <<'END'
for signal in CONT INT TERM USR1; do trap "echo $signal \$(date +%s%3N) >>log" $signal; done
touch ready
for ((i = 0; i < 300; ++i)); do sleep 0.05; date +%s%3N >alive.new; mv alive.new alive; done
END

seconds() {
    printf %.0f "$(($1 - begin))e-3"
}
signalled() {
    rm -f log ready
    mpirun --allow-run-as-root --oversubscribe -np 1 bash rank.sh >/dev/null 2>&1 &
    until [ -e ready ]; do sleep 0.05; done
    local begin status=0 what at
    begin=$(date +%s%3N)
    kill -"$1" $!
    wait $! || status=$?
    echo "$1 at 0 s: $(while read -r what at; do echo -n "$what at $(seconds "$at") s, "; done <log)killed at" \
        "$(seconds "$(cat alive)") s; mpirun's status $status"
}
both() {
    signalled TERM
    signalled INT
}
prints "TERM at 0 s: CONT at 0 s, TERM at 1 s, killed at 2 s; mpirun's status 1
INT at 0 s: CONT at 0 s, TERM at 1 s, killed at 2 s; mpirun's status 1" both

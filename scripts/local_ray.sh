# Sourced by scripts that need a Ray head of their own. start_local_ray sets RAY_ADDRESS; stop_local_ray stops that head and
# no other: it knows its process group, ports and folder, and `ray stop` (which ends every Ray of the user) is never called.
#
# The head gets free ports, so it lives beside any other Ray of this machine, and a token of its own: whoever reaches the
# dashboard's port may run code, so without the token nobody else on the machine should. Both sides, the head and
# `ray job submit`, read the token from the same exported path.

ray_dir=""
ray_group=""

free_ports() {
    python -c '
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))' "$1"
}

start_local_ray() {
    local port dashboard client agent metrics waited=0
    ray_dir="$(mktemp -d "${TMPDIR:-/tmp}/espalier-ray.XXXX")"
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$ray_dir/token"
    (umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$RAY_AUTH_TOKEN_PATH")
    read -r port dashboard client agent metrics <<<"$(free_ports 5)"
    # `ray job stop` kills after this time; Ray's 3 s would not let a run save its checkpoint.
    export RAY_JOB_STOP_WAIT_TIME_S="${RAY_JOB_STOP_WAIT_TIME_S:-50}"
    # Its own process group, so that a signal to the group ends the head and everything it started.
    setsid ray start --head --block --port="$port" --dashboard-port="$dashboard" \
        --ray-client-server-port="$client" --dashboard-agent-listen-port="$agent" --metrics-export-port="$metrics" \
        --include-dashboard=true --temp-dir="$ray_dir" --num-cpus="${ESPALIER_RAY_CPUS:-8}" --disable-usage-stats \
        --object-store-memory=1000000000 >"$ray_dir/head.log" 2>&1 </dev/null &
    ray_group=$!
    until (exec 3<>"/dev/tcp/127.0.0.1/$dashboard") 2>/dev/null; do
        if ! kill -0 "$ray_group" 2>/dev/null || ((++waited > 180)); then
            tail -n 20 "$ray_dir/head.log" >&2
            echo "ray: the local head did not start; its full log is $ray_dir/head.log" >&2
            return 1
        fi
        sleep 0.5
    done
    export RAY_ADDRESS="http://127.0.0.1:$dashboard"
    echo "ray: local head at $RAY_ADDRESS (token in $RAY_AUTH_TOKEN_PATH)"
}

# stop_local_ray keep: leaves the head's logs in place.
stop_local_ray() {
    [[ -n "$ray_group" ]] || return 0
    local waited=0
    kill -TERM -- "-$ray_group" 2>/dev/null || true
    while kill -0 -- "-$ray_group" 2>/dev/null && ((++waited < 40)); do sleep 0.25; done
    kill -KILL -- "-$ray_group" 2>/dev/null || true
    wait "$ray_group" 2>/dev/null || true
    ray_group=""
    if [[ "${1:-}" == keep ]]; then
        echo "ray: logs of all processes are in $ray_dir/session_latest/logs" >&2
    else
        rm -rf "$ray_dir"
    fi
}

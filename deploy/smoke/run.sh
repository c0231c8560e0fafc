#!/bin/sh
# Start the platform under a project name of its own, run rollouts over the load balancer, kill a gateway, the controller
# and Redis meanwhile, and check that nothing was lost or counted twice. Removes what it made, its volume included.
#
#   deploy/smoke/run.sh [ROLLOUTS]      needs docker with compose; UP adds options of `docker compose up`
set -eu
cd "$(dirname "$0")/../.."

count=${1:-40}
export COMPOSE_PROJECT_NAME=leyden-smoke
export LEYDEN_KEY="${LEYDEN_KEY:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')}"
export LEYDEN_PUBLISH="${LEYDEN_PUBLISH:-127.0.0.1:0}"
export LEYDEN_REDIS_PUBLISH="${LEYDEN_REDIS_PUBLISH:-127.0.0.1:0}"
export LEYDEN_SLOTS="${LEYDEN_SLOTS:-8}"
export LEYDEN_AGENTS=./deploy/smoke/agents

compose() { docker compose -f docker-compose.yml -f deploy/smoke/compose.yml "$@"; }
drive() { compose run --rm --no-deps driver python drive.py "$@"; }
say() { echo "$(date +%T) $*"; }
# As a crash would: the container's own process dies, and the restart policy brings the container back.
crash() {
    say "kill -9: $1 $2"
    # shellcheck disable=SC2016
    compose exec -T --index "$2" "$1" sh -c 'read -r main _ < /proc/1/task/1/children; kill -9 "$main"' || true
}
restarts() {
    for id in $(compose ps --quiet); do docker inspect --format '{{.Name}} {{.RestartCount}}' "$id"; done |
        sed 's,^/leyden-smoke-,,' | grep -v ' 0$' | paste -sd, -
}

finish() {
    code=$?
    [ "$code" = 0 ] || compose logs --tail 40 --no-color || true
    compose down --volumes --timeout 5 >/dev/null 2>&1 || true
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2086
compose up --detach --wait --wait-timeout 300 ${UP:---build}
say "up; $count rollouts"
drive create "$count"
drive wait $((count / 10))
crash gateway 1
drive wait $((count * 3 / 10))
crash controller 1
drive wait $((count / 2))
say "restart: redis"
compose restart redis
drive wait $((count * 7 / 10))
crash redis 1
drive wait "$count"
say "restarts: $(restarts)"
drive check "$count"
say "nothing lost, nothing twice"

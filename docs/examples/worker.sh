#!/bin/sh
# A worker for a queue over HTTP, in POSIX sh; it needs curl 7.52 or newer, sed and mktemp. For each job it runs COMMAND, with the
# job (a JSON object, with "input") on stdin. What COMMAND prints, JSON, is the job's output. Another exit status than 0 is a
# failure, with the last lines of stderr as its message. When the attempt is lost (cancelled, timed out), COMMAND gets SIGTERM.
#
#     JOBS_URL=https://example.com/api/jobs JOBS_TOKEN=dj_... worker.sh QUEUE COMMAND [ARGUMENT...]
#
# HEARTBEAT: seconds between signs of life, at most a third of the queue's heartbeat_timeout. WAIT: seconds of one long poll.
set -u
umask 077
url=${JOBS_URL:?} queue=${1:?which queue?} heartbeat=${HEARTBEAT:-10} wait=${WAIT:-10} pause=1 stopping=
shift
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'stopping=1' TERM INT # what runs may end; an idle worker ends with its poll
printf 'silent\nheader = "Authorization: Bearer %s"\nheader = "Content-Type: application/json"\n' "${JOBS_TOKEN:?}" >"$dir/auth"

call() { # METHOD PATH [OPTION OF CURL]...: prints the status of the answer, 000 if there was none; the answer is in $dir/answer
    method=$1 path=$2
    shift 2
    curl --config "$dir/auth" --request "$method" --output "$dir/answer" --write-out '%{http_code}' "$@" "$url/$path"
}

beat() { # PID: shows signs of life, and ends the process when the attempt is lost
    while sleep "$heartbeat"; do
        case $(curl --config "$dir/auth" --config "$dir/job" --max-time 30 --request PUT --output "$dir/beat" \
            --write-out '%{http_code}' "$url/jobs/$id/heartbeat/") in
        404 | 409) kill "$1"; return ;;
        esac
    done
}

finish() { # STATUS [MEMBER OF THE BODY]: sends how the attempt ended, again and again while the server is away
    printf '{"status":"%s"%s}' "$1" "${2:-}" >"$dir/body"
    call PATCH "jobs/$id/" --config "$dir/job" --data-binary "@$dir/body" --retry 20 --retry-connrefused --retry-max-time 600
}

run() { # COMMAND [ARGUMENT...]
    "$@" <"$dir/job.json" >"$dir/out" 2>"$dir/err" &
    child=$!
    beat "$child" >/dev/null 2>&1 &
    heart=$!
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done # a signal ends a wait early
    kill -9 "$heart" 2>/dev/null # its trap is that of the whole, and would hold a TERM off
    wait "$heart" 2>/dev/null
    if [ "$code" -eq 0 ]; then
        output=$(cat "$dir/out")
        told=$(finish succeeded "${output:+,\"output\":$output}")
        refused=',"error":{"message":"The output is no JSON, or too long."},"final":true'
        case $told in 400 | 413) told=$(finish failed "$refused") ;; esac
    else
        message=$(tail -n 5 "$dir/err" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')
        told=$(finish failed ",\"error\":{\"message\":\"status $code: $message\"}")
        case $told in 400) told=$(finish failed ",\"error\":{\"message\":\"status $code\"}") ;; esac
    fi
    [ "$told" = 204 ] || printf 'job %s: its end was not taken: %s\n' "$id" "$(cat "$dir/answer")" >&2
}

while [ -z "$stopping" ]; do
    code=$(call POST "queues/$queue/claim/" --data "{\"limit\":1,\"wait\":$wait}" --max-time $((wait + 30)))
    case $code in
    200) # {"jobs":[{"id":"...", ..., "token":"...", ...}]}: the id comes first, the token after everything that a producer wrote
        pause=1
        sed 's/^[^[]*\[//; s/\][^]]*$//' "$dir/answer" >"$dir/job.json"
        id=$(sed 's/^{ *"id": *"\([^"]*\)".*/\1/' "$dir/job.json")
        sed 's/.*"token": *"\([^"]*\)".*/header = "X-Job-Token: \1"/' "$dir/job.json" >"$dir/job"
        run "$@"
        ;;
    204) pause=1; sleep 1 ;; # nothing came, or the server lets nobody wait
    000 | 429 | 5??) sleep "$pause"; pause=$((pause < 30 ? pause * 2 : 30)) ;; # the server is away
    *) cat "$dir/answer" >&2; exit 1 ;;
    esac
done

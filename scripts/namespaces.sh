# shellcheck shell=sh
# To be read by other scripts: a manager of jobs (slurm.sh, oar.sh) on this machine, of Debian's packages that are
# unpacked into build/NAME and *never installed*. They are laid over folders of namespaces of their own (mount, process,
# network, host name), whose end takes everything along: what is left afterwards is DIR alone, which `down` removes.
#
# The script sets `name`, `programs`, `host`, `folders` (what packages are laid over) and `inside`, which brings the
# manager up as process 1 of the namespaces; `unpacked` may mend what was unpacked.
. scripts/apt.sh
target=$PWD/build/$name
address=10.77.0.1

say() { echo "$name: $*" >&2; }
unpacked() { :; }

missing_here() { # the packages and what they depend on, as far as not installed; those installed are asked for again
    # shellcheck disable=SC2154,SC2086 # set by the script; a list of words
    apt-get install -s -qq --no-install-recommends --reinstall $programs | awk '/^Inst/ { print $2 }'
}

fetch() {
    # shellcheck disable=SC2046 # a list of words
    (cd "$target/packages" && apt-get download -qq $(missing_here) >/dev/null 2>&1)
}

unpack() {
    [ "$(cat "$target/complete" 2>/dev/null)" != "$programs" ] || return 0
    rm -rf "$target"
    mkdir -p "$target/packages" "$target/root"
    fetch || { apt_get update -qq 2>/dev/null && fetch; } || {
        say "the Debian packages could not be downloaded: $programs"
        exit 1
    }
    for package in "$target"/packages/*.deb; do dpkg -x "$package" "$target/root"; done
    rm -r "$target/packages"
    for each in bin sbin lib; do # links into usr on the machines that run this
        [ ! -d "$target/root/$each" ] || cp -a "$target/root/$each" "$target/root/usr/"
    done
    unpacked
    printf '%s' "$programs" >"$target/complete"
}

up() {
    directory=$1 nodes=$2
    [ "$(id -u)" = 0 ] || { say "namespaces and users of their own need root"; exit 1; }
    [ -e "$target/complete" ] || { say "unpack the packages first: scripts/$name.sh unpack"; exit 1; }
    [ ! -e "$directory/pid" ] || { say "$directory: one is there already: scripts/$name.sh down $directory"; exit 1; }
    mkdir -p "$directory/log"
    chmod 755 "$directory" "$directory/log"
    # nothing of what starts it may end it, and it keeps no pipe of that open
    setsid unshare --mount --propagation private --net --pid --fork --mount-proc --uts --ipc --kill-child \
        "scripts/$name.sh" inside "$directory" "$nodes" </dev/null >"$directory/log/up" 2>&1 &
    outer=$!
    until inner=$(pgrep -P "$outer"); do
        kill -0 "$outer" 2>/dev/null || { cat "$directory/log/up" >&2; exit 1; }
        sleep 0.05
    done
    echo "$inner" >"$directory/pid"
    tries=600
    until [ -e "$directory/ready" ]; do
        tries=$((tries - 1))
        if [ $tries = 0 ] || ! kill -0 "$outer" 2>/dev/null; then
            say "it did not come up; the end of $directory/log/up:"
            tail -n 20 "$directory/log/up" >&2
            kill -9 "$inner" 2>/dev/null || true
            rm -f "$directory/pid"
            exit 1
        fi
        sleep 0.1
    done
}

within() {
    pid=$(cat "$1/pid" 2>/dev/null) || { say "$1: no $name runs there"; exit 1; }
    shift
    exec nsenter -t "$pid" -m -n -p -u -i -- "$@"
}

down() { # the end of process 1 of the namespace ends all others, and the mounts and the network with them
    # one that is still coming up has left no number: it is known by its words
    if pid=$(cat "$1/pid" 2>/dev/null || pgrep -o -f "scripts/$name.sh inside $1 "); then
        kill -9 "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    fi
    rm -rf "$1"
}

# --- process 1 of the namespaces

lay() { # the packages over these folders; what is written there stays in memory
    mount -t tmpfs -o mode=755 none /run
    # shellcheck disable=SC2154 # set by the script
    for each in $folders; do
        mkdir -p /run/laid/$each.upper /run/laid/$each.work "$target/root/$each"
        mount -t overlay none -o "lowerdir=$target/root/$each:/$each,upperdir=/run/laid/$each.upper,workdir=/run/laid/$each.work" /$each
    done
}

connect() { # daemons take no address from a network that has the loopback alone
    ip link set lo up
    ip link add near type veth peer name far
    ip address add $address/24 dev near
    ip link set near up
    ip link set far up
    # shellcheck disable=SC2154 # set by the script
    hostname "$host"
    echo "127.0.0.1 localhost" >/etc/hosts
    echo "$address $host" >>/etc/hosts
    echo "hosts: files" >/etc/nsswitch.conf
}

add_users() { # the manager's own, and three people
    number=64030
    for user in "$@" alice bob carol; do
        grep -v "^$user:" /etc/passwd >/run/passwd || true
        cat /run/passwd >/etc/passwd
        echo "$user:x:$number:$number::/tmp:/bin/sh" >>/etc/passwd
        echo "$user:x:$number:" >>/etc/group
        number=$((number + 1))
    done
}

as() {
    user=$1
    shift
    setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}

until_true() {
    tries=300
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries != 0 ] || { say "waited in vain: $*"; exit 1; }
        sleep 0.1
    done
}

stay() { # process 1: it is ready, and collects the daemons' children that have lost their parents
    touch "$directory/ready"
    while :; do
        sleep 3600 &
        wait $! || true
    done
}

run_words() { # the script's words
    case ${1:-} in
    unpack) unpack ;;
    up) up "$(realpath -m "$2")" "${3:-4}" ;;
    in)
        shift
        within "$@"
        ;;
    down) down "$2" ;;
    shell)
        unpack
        made=$(mktemp -d "/tmp/$name-XXXXXX")
        trap '"scripts/$name.sh" down "$made"' EXIT
        up "$made" "${2:-4}"
        # shellcheck disable=SC2154 # set by the script
        say "${2:-4} nodes: $to_try; it ends with this shell"
        (within "$made" "${SHELL:-/bin/sh}") || true
        ;;
    inside)
        shift
        inside "$@"
        ;;
    *)
        sed -n 's/^#   //p' "$0" >&2
        exit 2
        ;;
    esac
}

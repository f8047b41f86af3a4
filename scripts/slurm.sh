#!/bin/sh
# A real Slurm (slurmctld, slurmd, slurmdbd with MariaDB, slurmrestd, munge) with several nodes on this machine, for
# tests, demo, benchmarks and people. Debian's packages are unpacked into build/slurm and *never installed*. They are
# laid over /usr and /etc of namespaces of their own (mount, process, network, host name), whose end takes everything
# along: what is left afterwards is DIR alone, which `down` removes.
#
#   scripts/slurm.sh unpack             the packages, once
#   scripts/slurm.sh up DIR [NODES]     NODES nodes n01, n02, ... (4); ready when it returns, some seconds later
#   scripts/slurm.sh in DIR COMMAND...  a command there, as root; `runuser -u alice --` makes it alice's (bob, carol)
#   scripts/slurm.sh down DIR           ends all of it
#   scripts/slurm.sh shell [NODES]      a shell in one that ends with the shell
#
# Logs: DIR/log. Configuration there: /etc/slurm. The host is 10.77.0.1 in its own network, which leads nowhere else.
# Environment: SLURM_ACCOUNTING=no leaves slurmdbd and MariaDB out.
set -eu
cd "$(dirname "$0")/.."
. scripts/apt.sh
target=$PWD/build/slurm
programs="mariadb-client-core mariadb-server-core munge slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin slurmctld slurmd"
programs="$programs slurmdbd slurmrestd"
host=slurm-head
address=10.77.0.1

say() { echo "slurm: $*" >&2; }

missing_here() { # the packages and what they depend on, as far as not installed; those installed are asked for again
    # shellcheck disable=SC2086 # a list of words
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
        say "the Debian packages of Slurm could not be downloaded: $programs"
        exit 1
    }
    for package in "$target"/packages/*.deb; do dpkg -x "$package" "$target/root"; done
    rm -r "$target/packages"
    for each in bin sbin lib; do # links into usr on the machines that run this
        [ ! -d "$target/root/$each" ] || cp -a "$target/root/$each" "$target/root/usr/"
    done
    for each in slurmctld slurmd slurmstepd; do # as the packages' alternatives do
        ln -sf "$each-wlm" "$target/root/usr/sbin/$each"
    done
    printf '%s' "$programs" >"$target/complete"
}

up() {
    directory=$1 nodes=$2
    [ "$(id -u)" = 0 ] || { say "namespaces and Slurm's users need root"; exit 1; }
    [ -e "$target/complete" ] || { say "unpack the packages first: scripts/slurm.sh unpack"; exit 1; }
    [ ! -e "$directory/pid" ] || { say "$directory: one is there already: scripts/slurm.sh down $directory"; exit 1; }
    mkdir -p "$directory/log"
    chmod 755 "$directory" "$directory/log"
    # nothing of what starts it may end it, and it keeps no pipe of that open
    setsid unshare --mount --propagation private --net --pid --fork --mount-proc --uts --ipc --kill-child \
        scripts/slurm.sh inside "$directory" "$nodes" </dev/null >"$directory/log/up" 2>&1 &
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
    pid=$(cat "$1/pid" 2>/dev/null) || { say "$1: no Slurm runs there"; exit 1; }
    shift
    exec nsenter -t "$pid" -m -n -p -u -i -- "$@"
}

down() { # the end of process 1 of the namespace ends all others, and the mounts and the network with them
    if pid=$(cat "$1/pid" 2>/dev/null); then
        kill -9 "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    fi
    rm -rf "$1"
}

# --- process 1 of the namespaces

lay() { # the packages over /usr and /etc; what is written there stays in memory
    mount -t tmpfs -o mode=755 none /run
    for each in usr etc; do
        mkdir -p /run/laid/$each.upper /run/laid/$each.work "$target/root/$each"
        mount -t overlay none -o "lowerdir=$target/root/$each:/$each,upperdir=/run/laid/$each.upper,workdir=/run/laid/$each.work" /$each
    done
    for each in munge mysqld slurm slurmrestd; do mkdir -p /run/$each; done
}

connect() { # daemons take no address from a network that has the loopback alone
    ip link set lo up
    ip link add near type veth peer name far
    ip address add $address/24 dev near
    ip link set near up
    ip link set far up
    hostname $host
    echo "127.0.0.1 localhost" >/etc/hosts
    echo "$address $host" >>/etc/hosts
    echo "hosts: files" >/etc/nsswitch.conf
}

add_users() { # Slurm's own, and three people
    number=64030
    for name in munge mysql slurm slurmrestd alice bob carol; do
        grep -v "^$name:" /etc/passwd >/run/passwd || true
        cat /run/passwd >/etc/passwd
        echo "$name:x:$number:$number::/tmp:/bin/sh" >>/etc/passwd
        echo "$name:x:$number:" >>/etc/group
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

start_munge() {
    mkdir -p /etc/munge
    head -c 1024 /dev/urandom >/etc/munge/munge.key
    chmod 400 /etc/munge/munge.key
    chown -R munge /etc/munge /run/munge
    as munge munged --force --log-file=/run/munge/log --pid-file=/run/munge/pid --seed-file=/run/munge/seed \
        --socket=/run/munge/munge.socket.2
}

start_accounting() {
    mkdir -p "$directory/mariadb"
    chown mysql "$directory/mariadb" /run/mysqld
    as mysql mariadb-install-db --no-defaults --datadir="$directory/mariadb" --skip-test-db --auth-root-authentication-method=normal >/dev/null
    as mysql mariadbd --no-defaults --datadir="$directory/mariadb" --socket=/run/mysqld/mysqld.sock --skip-networking \
        --innodb-buffer-pool-size=32M --innodb-flush-log-at-trx-commit=0 >"$directory/log/mariadbd" 2>&1 &
    cat >/etc/slurm/slurmdbd.conf <<END
DbdHost=$host
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
LogFile=$directory/log/slurmdbd
PidFile=/run/slurm/slurmdbd.pid
END
    chown slurm /etc/slurm/slurmdbd.conf
    chmod 600 /etc/slurm/slurmdbd.conf
    until_true mariadb -u root -e 'select 1'
    mariadb -u root -e "create database slurm; create user slurm@localhost identified by 'slurm'; grant all on slurm.* to slurm@localhost"
    as slurm slurmdbd
    until_true sacctmgr -n list cluster
    sacctmgr -i -Q add cluster emulated >/dev/null
    sacctmgr -i -Q add account research >/dev/null
    sacctmgr -i -Q add user alice,bob,carol account=research >/dev/null
}

configure() {
    names=$(printf 'n[%02d-%02d]' 1 "$nodes")
    mkdir -p /etc/slurm "$directory/state" "$directory/spool"
    chown slurm "$directory/state" "$directory/log" /run/slurm
    cat >/etc/slurm/slurm.conf <<END
ClusterName=emulated
SlurmctldHost=$host
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.%n.pid
SlurmctldLogFile=$directory/log/slurmctld
SlurmdLogFile=$directory/log/slurmd.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=5,batch_sched_delay=0
ReturnToService=2
SlurmctldTimeout=30
KillWait=5
JobAcctGatherType=jobacct_gather/none
$1
NodeName=$names NodeHostname=$host NodeAddr=$address Port=[17001-$((17000 + nodes))] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=$names Default=YES OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP
END
}

inside() {
    directory=$1 nodes=$2
    lay
    connect
    add_users
    mkdir -p /etc/slurm
    start_munge
    if [ "${SLURM_ACCOUNTING:-yes}" = yes ]; then
        configure "AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$host"
        start_accounting
    else
        configure "AccountingStorageType=accounting_storage/none"
    fi
    as slurm slurmctld
    for number in $(seq 1 "$nodes"); do slurmd -N "$(printf n%02d "$number")"; done
    chown slurmrestd /run/slurmrestd
    as slurmrestd slurmrestd -a rest_auth/local unix:/run/slurmrestd/slurmrestd.socket >"$directory/log/slurmrestd" 2>&1 &
    all_idle() { [ "$(sinfo -h -o '%D %T')" = "$nodes idle" ]; }
    until_true all_idle
    touch "$directory/ready"
    while :; do # collects the daemons' children that have lost their parents
        sleep 3600 &
        wait $! || true
    done
}

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
    made=$(mktemp -d /tmp/slurm-XXXXXX)
    trap 'scripts/slurm.sh down "$made"' EXIT
    up "$made" "${2:-4}"
    say "a Slurm with ${2:-4} nodes: sinfo, srun, runuser -u alice -- sbatch ...; it ends with this shell"
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

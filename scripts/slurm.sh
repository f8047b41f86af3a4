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
name=slurm
programs="mariadb-client-core mariadb-server-core munge slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin slurmctld slurmd"
programs="$programs slurmdbd slurmrestd"
host=slurm-head
folders="usr etc"
to_try="sinfo, srun, runuser -u alice -- sbatch ..."
. scripts/namespaces.sh

unpacked() {
    for each in slurmctld slurmd slurmstepd; do # as the packages' alternatives do
        ln -sf "$each-wlm" "$target/root/usr/sbin/$each"
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
    for each in munge mysqld slurm slurmrestd; do mkdir -p /run/$each; done
    connect
    add_users munge mysql slurm slurmrestd
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
    stay
}

run_words "$@"

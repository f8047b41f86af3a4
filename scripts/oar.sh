#!/bin/sh
# A real OAR (Almighty with its modules, PostgreSQL, the sshd of its nodes) with several nodes on this machine, for
# tests and people, in namespaces of its own: see namespaces.sh.
#
#   scripts/oar.sh unpack             the packages, once
#   scripts/oar.sh up DIR [NODES]     NODES nodes n01, n02, ... (4); ready when it returns, some seconds later
#   scripts/oar.sh in DIR COMMAND...  a command there, as root; `runuser -u alice --` makes it alice's (bob, carol)
#   scripts/oar.sh down DIR           ends all of it
#   scripts/oar.sh shell [NODES]      a shell in one that ends with the shell
#
# Logs: DIR/log; OAR's own: /var/log/oar.log there. Configuration there: /etc/oar. All nodes are names of the one host.
set -eu
cd "$(dirname "$0")/.."
name=oar
programs="oar-server oar-server-pgsql oar-user oar-user-pgsql oar-node postgresql-15 openssh-server libdbd-pg-perl libjson-perl"
host=oar-head
folders="usr etc var"
to_try="oarnodes, oarstat, cd /tmp && runuser -u alice -- oarsub ..."
. scripts/namespaces.sh

unpacked() {
    rm -rf "$target/root/var/run" "$target/root/var/lock"
}

start_database() {
    PATH=/usr/lib/postgresql/15/bin:$PATH
    mkdir -p "$directory/postgresql" /run/postgresql
    chown postgres "$directory/postgresql" /run/postgresql
    as postgres initdb --pgdata="$directory/postgresql" --auth=trust --no-sync --encoding=UTF8 >"$directory/log/initdb"
    as postgres postgres -D "$directory/postgresql" -c fsync=off -c shared_buffers=16MB -c listen_addresses=127.0.0.1 \
        >"$directory/log/postgres" 2>&1 &
    until_true psql -h 127.0.0.1 -U postgres -c 'select 1'
}

set_conf() { # KEY VALUE in oar.conf
    sed -i "s|^#\{0,1\}$1=.*|$1=\"$2\"|" /etc/oar/oar.conf
    grep -q "^$1=\"$2\"$" /etc/oar/oar.conf || echo "$1=\"$2\"" >>/etc/oar/oar.conf
}

configure() { # as the packages' own scripts do, which run when a package is installed
    for each in common server node user; do
        # shellcheck disable=SC2016 # is run there
        bash -ec '. "/usr/lib/oar/setup/$1.sh"; SETUP_TYPE=tgz; "$1_setup"' - "$each"
    done
    ssh-keygen -A >/dev/null
    ssh-keygen -q -t rsa -N '' -f /etc/oar/oar_ssh_host_rsa_key
    set_conf DB_BASE_PASSWD oar
    set_conf DB_BASE_PASSWD_RO oar_ro
    set_conf PINGCHECKER_GENERIC_COMMAND "/bin/cat /dev/null" # its own check asks each node for a ping
    sed -i 's/^PINGCHECKER_SENTINELLE/#&/; s/^JOB_RESOURCE_MANAGER/#&/' /etc/oar/oar.conf # no cgroups of its own here
}

inside() {
    directory=$1 nodes=$2
    lay
    connect
    for number in $(seq 1 "$nodes"); do printf '%s n%02d\n' $address "$number" >>/etc/hosts; done
    add_users postgres sshd oar
    start_database
    configure
    mkdir -p /run/sshd
    /usr/sbin/sshd -f /etc/oar/sshd_config -E "$directory/log/sshd"
    oar-database --create --db-admin-user postgres --db-admin-pass none >"$directory/log/database"
    /usr/sbin/oar-server
    for number in $(seq 1 "$nodes"); do oarnodesetting -a -h "$(printf n%02d "$number")" -p cpuset=0 >/dev/null; done
    all_alive() { [ "$(oarnodes -s | grep -c Alive)" = "$nodes" ]; }
    until_true all_alive
    stay
}

run_words "$@"

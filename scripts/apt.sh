# shellcheck shell=sh
# To be read by other scripts: `apt_get`, which waits while another apt has a lock. Not a command by itself.
#
# DPkg::Lock::Timeout is about dpkg's locks alone. apt never waits for those of its lists and archives, so a run that
# fails at one of these is repeated; any other failure is repeated once, since an index may have changed meanwhile.
# Environment: APT_WAIT_S, the longest wait for either in seconds (default 600).
apt_get() {
    apt_waited=0 apt_repeated=0
    while :; do
        apt_status=0
        apt_errors=$(LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout="${APT_WAIT_S:-600}" "$@" 2>&1 >/dev/null) ||
            apt_status=$?
        [ "$apt_status" != 0 ] || return 0
        case $apt_errors in
        *"Could not get lock"*)
            [ "$apt_waited" -lt "${APT_WAIT_S:-600}" ] || break
            apt_waited=$((apt_waited + 5))
            ;;
        *)
            [ "$apt_repeated" = 0 ] || break
            apt_repeated=1
            ;;
        esac
        sleep 5
    done
    printf '%s\n' "$apt_errors" >&2
    return "$apt_status"
}

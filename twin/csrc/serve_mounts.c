/*
 * Judges mount calls: the kernel executes a call, we execute it, or it is refused. See serve_internal.h.
 */
#include "serve_internal.h"

#include <linux/kcmp.h>

#define ALL_PROPAGATION (MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE)

/****************************************************************
 * mount(2), umount2(2)
 ****************************************************************/

static uint64_t attributes_of(uint64_t mount_flags)
{
    return (mount_flags & MS_RDONLY ? ATTR_RDONLY : 0) | (mount_flags & MS_NOSUID ? ATTR_NOSUID : 0) |
           (mount_flags & MS_NODEV ? ATTR_NODEV : 0) | (mount_flags & MS_NOEXEC ? ATTR_NOEXEC : 0);
}

static int mount_new(syscall_server_t *server, const watched_call_t *call, const place_t *target)
{
    char type[64];
    int error = caller_string(call, call->args[2], type, sizeof type);
    if (error == -ENAMETOOLONG)
        return LEAVE_TO_KERNEL; /* not a type that we know */
    if (error)
        return error == -EFAULT ? LEAVE_TO_KERNEL : error;
    if (tree_is_control_type(type))
        return -EPERM;
    if (!tree_replaces_type(type) || !caller_may_mount(call))
        return LEAVE_TO_KERNEL;
    int tree = tree_for_type(server, call, type);
    if (tree < 0)
        return tree;
    int below = strcmp(type, "sysfs") ? -1 : tree_clone(server->empty); /* shows the sysfs line in /proc/mounts */
    error = tree_set_attributes(tree, attributes_of(call->args[3]));
    if (!error && !(error = caller_enter(server, call, place_is_relative(target)))) {
        if (below >= 0)
            error = tree_attach(below, target->fd, target->path);
        error = error ? error : tree_attach(tree, target->fd, target->path);
        caller_leave(server);
    }
    close(below);
    close(tree);
    return error;
}

/* A remount. A control file system stays read-only; flags of a sysfs also apply to the twin's mounts in it. */
static int mount_again(syscall_server_t *server, const watched_call_t *call, const place_t *target)
{
    int error = caller_enter(server, call, place_is_relative(target));
    if (error)
        return error;
    int result = LEAVE_TO_KERNEL, at = place_open(target, 0);
    if (at >= 0 && tree_is_control(at) && !(call->args[3] & MS_RDONLY))
        result = -EPERM;
    else if (at >= 0 && tree_which(server, at) == TREE_SYSFS && caller_may_mount(call))
        result = tree_set_attributes(at, attributes_of(call->args[3]));
    close(at);
    caller_leave(server);
    return result;
}

/* Whether a bind of this directory alone would show the host's files below the twin's: those of the sysfs or a procfs.
 * */
static int lies_over_hosts(const syscall_server_t *server, int at)
{
    struct stat status;
    int which = fstat(at, &status) || !S_ISDIR(status.st_mode) ? TREE_OTHER : tree_which(server, at);
    return which == TREE_SYSFS || which == TREE_PROCFS;
}

/* "mount --bind /proc DIR" gets the whole procfs: on a real node there are no mounts in it that a bind would omit. */
static int bind_whole(const syscall_server_t *server, const watched_call_t *call, const place_t *target)
{
    place_t source;
    if (place_read(call, call->args[0], &source))
        return LEAVE_TO_KERNEL;
    int result = caller_enter(server, call, place_is_relative(&source) || place_is_relative(target));
    if (!result) {
        int from = place_open(&source, 0), to = place_open(target, 0), tree = -1;
        result = LEAVE_TO_KERNEL;
        if (to >= 0 && lies_over_hosts(server, from) && caller_may_mount(call))
            result = (tree = tree_clone_at(from, "")) < 0 ? tree : tree_attach(tree, to, "");
        close(tree);
        close(to);
        close(from);
        caller_leave(server);
    }
    place_close(&source);
    return result;
}

/* The twin's own mounts cannot be moved. */
static int move_place(const syscall_server_t *server, const watched_call_t *call)
{
    place_t source;
    if (place_read(call, call->args[0], &source))
        return LEAVE_TO_KERNEL;
    int result = caller_enter(server, call, place_is_relative(&source));
    if (!result) {
        int at = place_open(&source, 0);
        result = tree_is_own_mount(server, at) ? -EINVAL : LEAVE_TO_KERNEL;
        close(at);
        caller_leave(server);
    }
    place_close(&source);
    return result;
}

int judge_mount(syscall_server_t *server, const watched_call_t *call)
{
    place_t target;
    uint64_t flags = call->args[3];
    int result = LEAVE_TO_KERNEL;
    if (place_read(call, call->args[1], &target))
        return LEAVE_TO_KERNEL; /* the kernel returns the error */
    if (flags & MS_REMOUNT)
        result = mount_again(server, call, &target);
    else if (flags & MS_BIND)
        result = flags & MS_REC ? LEAVE_TO_KERNEL : bind_whole(server, call, &target);
    else if (flags & ALL_PROPAGATION)
        result = LEAVE_TO_KERNEL;
    else
        result = flags & MS_MOVE ? move_place(server, call) : mount_new(server, call, &target);
    place_close(&target);
    return result;
}

/* With all that lies in it, and the empty sysfs below, which mount_new put there. */
static int unmount_all(const syscall_server_t *server, const char *target)
{
    if (umount2(target, MNT_DETACH))
        return -errno;
    int below = open(target, O_PATH | O_CLOEXEC);
    if (tree_which(server, below) == TREE_KERNELS_SYSFS)
        umount2(target, MNT_DETACH);
    close(below);
    return 0;
}

/* Unmounted plainly or lazily. Without MNT_DETACH /sys and /proc of the run are busy, as on any node. */
static int is_ours_to_unmount(const watched_call_t *call, const char *path)
{
    if (call->args[1])
        return call->args[1] == MNT_DETACH;
    return strcmp(path, "/sys") && strcmp(path, "/proc");
}

/* On a real node there are no mounts in place of the twin's files, and a sysfs or procfs is unmounted as a whole. In a
 * copy ("umount -R" after "mount --rbind /sys DIR") the twin's mounts are unmounted with the sysfs or procfs around
 * them. */
static int unmount(const syscall_server_t *server, const watched_call_t *call, int at, const char *target)
{
    char path[PATH_MAX];
    tree_path(at, path);
    if (tree_is_root(at, server->tree_device))
        return *path && !tree_is_own_mount(server, at) && caller_may_mount(call) ? 0 : -EINVAL;
    if (tree_is_root(at, server->run_device) && !strcmp(path, "/run"))
        return -EBUSY;
    if (!is_ours_to_unmount(call, path) || !*target || !caller_may_mount(call))
        return LEAVE_TO_KERNEL;
    int is_one_thing = tree_is_root(at, server->sysfs_device) || tree_which(server, at) == TREE_PROCFS;
    return is_one_thing ? unmount_all(server, target) : LEAVE_TO_KERNEL;
}

int judge_umount2(syscall_server_t *server, const watched_call_t *call)
{
    place_t target;
    if (place_read(call, call->args[0], &target))
        return LEAVE_TO_KERNEL;
    int result = caller_enter(server, call, place_is_relative(&target));
    if (!result) {
        int at = place_open(&target, call->args[1] & UMOUNT_NOFOLLOW ? O_NOFOLLOW : 0);
        result = at < 0 ? LEAVE_TO_KERNEL : unmount(server, call, at, target.path);
        close(at);
        caller_leave(server);
    }
    place_close(&target);
    return result;
}

/****************************************************************
 * fsopen(2), fsmount(2), open_tree(2), move_mount(2), mount_setattr(2)
 ****************************************************************/

static void keep(syscall_server_t *server, int *kept, unsigned *next, int fd)
{
    pthread_mutex_lock(&server->spare_lock);
    int *slot = &kept[(*next)++ % KEPT];
    close(*slot);
    *slot = fd;
    pthread_mutex_unlock(&server->spare_lock);
}

/* fsopen(2): we create the context and keep a copy, so that judge_fsmount recognises it. */
int judge_fsopen(syscall_server_t *server, const watched_call_t *call)
{
    char type[64];
    if (caller_string(call, call->args[0], type, sizeof type))
        return LEAVE_TO_KERNEL;
    if (tree_is_control_type(type))
        return -EPERM;
    if (!tree_replaces_type(type) || !caller_may_mount(call))
        return LEAVE_TO_KERNEL;
    int is_proc = !strcmp(type, "proc");
    int context = is_proc ? tree_procfs_context(server, call) : (int)syscall(SYS_fsopen, type, CLOSE_ON_EXEC);
    if (context < 0)
        return is_proc ? context : -errno;
    int error = seccomp_answer_fd(call->listener, call->id, context, call->args[1] & CLOSE_ON_EXEC);
    if (error)
        close(context);
    else
        keep(server, server->contexts, &server->next_context, context);
    return error ? error : ANSWERED;
}

static int is_kept(syscall_server_t *server, int context)
{
    int self = getpid(), found = 0;
    pthread_mutex_lock(&server->spare_lock);
    for (int i = 0; i < KEPT && !found; i++)
        found = server->contexts[i] >= 0 && syscall(SYS_kcmp, self, self, KCMP_FILE, context, server->contexts[i]) == 0;
    pthread_mutex_unlock(&server->spare_lock);
    return found;
}

/* Gives the program a descriptor of the tree's root directory, and keeps `tree`. The mount's own descriptor cannot be
 * passed (it is O_PATH). When it closes, the kernel dissolves the tree (dissolve_on_fput in fs/namespace.c), so we keep
 * it until the program must have attached the tree. */
static int hand_over(syscall_server_t *server, const watched_call_t *call, int tree, int close_on_exec)
{
    int root = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = root < 0 ? -errno : seccomp_answer_fd(call->listener, call->id, root, close_on_exec);
    close(root);
    if (error)
        close(tree);
    else
        keep(server, server->trees, &server->next_tree, tree);
    return error ? error : ANSWERED;
}

int judge_fsmount(syscall_server_t *server, const watched_call_t *call)
{
    int context = caller_fd(call, (int)call->args[0]);
    if (context < 0 || !is_kept(server, context) || !caller_may_mount(call)) {
        close(context);
        return LEAVE_TO_KERNEL;
    }
    int made = (int)syscall(SYS_fsmount, context, CLOSE_ON_EXEC, (unsigned)call->args[2]);
    int tree = made < 0 ? -errno : tree_in_place_of(server, made);
    close(context);
    if (tree < 0)
        return tree;
    int error = tree_set_attributes(tree, call->args[2] & (ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC));
    if (!error)
        return hand_over(server, call, tree, call->args[1] & CLOSE_ON_EXEC);
    close(tree);
    return error;
}

/* Opens (O_PATH) a path relative to the descriptor `base`. Call it between caller_enter() and caller_leave(). */
static int open_from(int base, const place_t *place)
{
    if (place_is_relative(place))
        return openat(base, place->path, O_PATH | O_CLOEXEC);
    return *place->path ? open(place->path, O_PATH | O_CLOEXEC) : dup(place->fd >= 0 ? place->fd : base);
}

/* As bind_whole() and move_place(), for programs that use open_tree(2) and move_mount(2). */
static int judge_tree(syscall_server_t *server, const watched_call_t *call, int is_move)
{
    place_t place;
    int base = (int)call->args[0], tree = LEAVE_TO_KERNEL;
    if (place_read(call, call->args[1], &place))
        return LEAVE_TO_KERNEL;
    int from_here = place_is_relative(&place) && base == AT_FDCWD;
    if (base != AT_FDCWD)
        base = caller_fd(call, base);
    int error = caller_enter(server, call, from_here);
    if (!error) {
        int at = open_from(base, &place);
        if (is_move)
            tree = tree_is_own_mount(server, at) ? -EINVAL : LEAVE_TO_KERNEL;
        else if (lies_over_hosts(server, at) && caller_may_mount(call))
            tree = tree_clone_at(at, "");
        close(at);
        caller_leave(server);
    }
    close(base);
    place_close(&place);
    if (error || tree < 0 || tree == LEAVE_TO_KERNEL)
        return error ? error : tree;
    return hand_over(server, call, tree, call->args[2] & TREE_CLOEXEC);
}

int judge_open_tree(syscall_server_t *server, const watched_call_t *call)
{
    int is_whole = !(call->args[2] & TREE_CLONE) || call->args[2] & RECURSIVE;
    return is_whole ? LEAVE_TO_KERNEL : judge_tree(server, call, 0);
}

int judge_move_mount(syscall_server_t *server, const watched_call_t *call)
{
    return judge_tree(server, call, 1);
}

/* Refuses to make a control file system writable again, or a whole tree, which may contain one. */
int judge_mount_setattr(syscall_server_t *server, const watched_call_t *call)
{
    char target[PATH_MAX];
    attributes_t attributes;
    int flags = (int)call->args[2];
    if (call->args[4] < sizeof attributes ||
        task_memory(call->task, call->args[3], &attributes, sizeof attributes) != sizeof attributes ||
        !(attributes.clear & ATTR_RDONLY) || caller_string(call, call->args[1], target, sizeof target))
        return LEAVE_TO_KERNEL;
    if (flags & RECURSIVE)
        return -EPERM;
    int base = (int)call->args[0] == AT_FDCWD ? AT_FDCWD : caller_fd(call, (int)call->args[0]);
    int error = caller_enter(server, call, base == AT_FDCWD);
    if (!error) {
        int at = *target ? openat(base, target, O_PATH | O_CLOEXEC) : dup(base);
        error = at >= 0 && tree_is_control(at) ? -EPERM : LEAVE_TO_KERNEL;
        close(at);
        caller_leave(server);
    }
    close(base);
    return error;
}

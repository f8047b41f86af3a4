-- nodectl: written by `clusterctl slurm install --tags` or `--schedule`, taken away by `clusterctl slurm remove`.
-- Slurm runs this in slurmctld for each submission. It opens no file and starts nothing, and an error in it refuses no
-- job.
-- --tags: a job's comment says what kind of job it is, nodectl=memory, mixed or compute: as the user says (sbatch
-- --comment nodectl=memory), else as the user said last for a job of this name, else by partition.
-- --schedule: jobs of PARTITION get a begin time that is DEFER seconds ahead, and `clusterctl slurm schedule` starts
-- them. When nobody moves that time on any more, it comes, and Slurm starts them by itself.

local WITH_TAGS = @WITH_TAGS@
local PARTITION = "@PARTITION@" -- empty: no job is deferred
local DEFER = @DEFER@
local SLURM_USER = @SLURM_USER@
local WAITS = "nodectl: waits for its scheduler, which alone starts it"
local OWN_NODES = " (requires nodes)"
local OTHER_NODES = " (excludes nodes)"
local JOB_HELD = 2042 -- "Job is in held state, pending scheduler release"

local DEFAULT = {} -- by partition: { highmem = "memory" }
local TAGS = { memory = true, mixed = true, compute = true }
local MODES = { monitor = true, optimize = true, off = true } -- of the nodes' agents, next to a tag
local MOST = 10000 -- names to remember; they are forgotten when slurmctld starts again
local last, names = {}, 0

local function tag(desc, uid)
    local key = uid .. ":" .. (desc.name or "")
    local said, odd
    for word in string.gmatch(string.lower(desc.comment or ""), "nodectl=(%a+)") do
        if TAGS[word] then
            said = said or word
        elseif not MODES[word] then
            odd = word
        end
    end
    if said then
        if not last[key] and names < MOST then
            names = names + 1
            last[key] = ""
        end
        if last[key] then
            last[key] = said
        end
    elseif odd then
        slurm.log_user("nodectl=" .. odd .. " in the comment is none of memory, mixed, compute: it is ignored")
    else
        local found = last[key] or DEFAULT[desc.partition or ""]
        if found then
            desc.comment = (desc.comment and desc.comment .. " " or "") .. "nodectl=" .. found
        end
    end
end

local function is_ours(wanted, partitions)
    if not wanted or wanted == "" then
        for name, one in pairs(partitions) do
            if one.flag_default == 1 then
                wanted = name
            end
        end
    end
    return string.find("," .. (wanted or "") .. ",", "," .. PARTITION .. ",", 1, true) ~= nil
end

local function waits(desc)
    if (desc.req_nodes or "") ~= "" then
        return WAITS .. OWN_NODES
    end
    return WAITS .. ((desc.exc_nodes or "") ~= "" and OTHER_NODES or "")
end

local function defer(desc, partitions)
    if desc.reservation or not is_ours(desc.partition, partitions) then
        return -- a reservation of Slurm's is Slurm's to fill
    end
    -- a begin time of the user's own is later by as much, so whoever reads it knows both
    desc.begin_time = math.max(desc.begin_time or 0, os.time()) + DEFER
    desc.admin_comment = waits(desc)
end

local function edit(desc, job)
    if string.find(job.admin_comment or "", WAITS, 1, true) ~= 1 then
        return slurm.SUCCESS
    end
    local begin = desc.begin_time or 0
    if begin > 0 and begin <= os.time() then
        return JOB_HELD
    elseif begin > 0 then
        desc.begin_time = begin + DEFER
    end
    if desc.req_nodes or desc.exc_nodes then
        desc.admin_comment = waits(desc)
    end
    return slurm.SUCCESS
end

local function try(what, ...)
    local is_done, reason = pcall(what, ...)
    if not is_done then
        slurm.log_info("nodectl: job_submit.lua: %s", tostring(reason))
    end
    return is_done and reason or slurm.SUCCESS
end

function slurm_job_submit(desc, partitions, uid)
    if WITH_TAGS then
        try(tag, desc, uid)
    end
    if PARTITION ~= "" then
        try(defer, desc, partitions)
    end
    return slurm.SUCCESS
end

function slurm_job_modify(desc, job, partitions, uid)
    if PARTITION == "" or uid == 0 or uid == SLURM_USER then
        return slurm.SUCCESS
    end
    return try(edit, desc, job)
end

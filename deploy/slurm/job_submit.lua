-- Slurm's job_submit/lua: looks at the verdict that lies ready for a job's plan. Beside slurm.conf, on the controller:
--   JobSubmitPlugins=lua
-- slurmctld runs this holding its locks: it reads one small local file and never waits for a network. The files are
-- kept by planner-verdicts.service (python3 -P -m planner.admission.slurm verdicts FOLDER).

-- The site's:
local VERDICTS = "/var/spool/planner/verdicts"
local MISSING = "admit" -- or refuse: a plan without a file here, or a spec that nobody checked
local UNDECIDED = "admit" -- or refuse: the planner did not answer, or not in time, and the policy there let it through
local UNPLANNED = "admit" -- or refuse: a job that asks for GPUs and names no spec, or one that cannot be planned

local function asks_for_gpus(job)
  for _, name in ipairs({ "gres", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
    if (job[name] or ""):find("gpu", 1, true) then
      return true
    end
  end
  return false
end

local function by(policy, job, note)
  job.admin_comment = "planner: " .. note
  if policy == "admit" then
    return slurm.SUCCESS
  end
  slurm.log_user("planner: refused: %s", note)
  return slurm.ERROR
end

local function by_file(job, plan)
  local file = io.open(VERDICTS .. "/" .. plan, "r")
  if not file then
    return by(MISSING, job, "no verdict of " .. plan .. " lies here")
  end
  local action, verdict, text = file:read(4096):match("^(%l+)\n(%l+)\n(.*)$")
  file:close()
  if action ~= "admit" and action ~= "warn" then
    slurm.log_user("%s", ((text or "planner: refused"):gsub("%s+$", "")))
    return slurm.ERROR
  end
  job.admin_comment = string.format("planner: %s, %s", verdict, plan)
  return slurm.SUCCESS
end

function slurm_job_submit(job, parts, uid)
  local note = (job.comment or ""):match("planner:(%S+)")
  if not note then
    if UNPLANNED ~= "admit" and asks_for_gpus(job) then
      return by(UNPLANNED, job, "the job asks for GPUs and names no spec: --comment=planner:job.yaml")
    end
    return slurm.SUCCESS
  end
  local plan = note:match("^pl%-" .. ("[a-z2-7]"):rep(26) .. "$")
  if plan then
    return by_file(job, plan)
  end
  for _, each in ipairs({ "pending", "unreachable", "unplannable", "broken" }) do
    if note == each then
      local insists = note == "unplannable" and UNPLANNED ~= "admit"
      return by(insists and UNPLANNED or UNDECIDED, job, "the job was not checked: " .. note)
    end
  end
  return by(MISSING, job, "the job's spec was not checked where it was submitted")
end

function slurm_job_modify(job, record, parts, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS

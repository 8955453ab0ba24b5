-- Slurm's cli_filter/lua: asks the planner before sbatch, salloc or srun sends a job. Beside slurm.conf, on every
-- machine that submits:  CliFilterPlugins=lua
--
-- A job names its spec in its comment:  #SBATCH --comment=planner:job.yaml
-- In its place the comment then carries the plan's id, or why there is none. This runs on the submitter's side and can
-- be gone around (slurmrestd does); job_submit.lua looks at what arrives.

-- The site's:
local PLANNER = "/usr/bin/python3 -P -m planner.admission.slurm" -- -P: no module of the folder where it starts
local POLICY = "/etc/planner/admission.ini"
local LIMIT_SECONDS = 30 -- above wait_seconds of the policy; whatever hangs is ended then

local ASKING = { -- which GPUs a job asks for, and how many
  "gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node", "constraint",
}
local plans = {}

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

local function say(text)
  io.stderr:write(text, "\n")
end

-- In /: nothing of the submission folder runs on this machine. $folder is that folder.
local function command(arguments)
  return string.format(
    'folder=$(pwd -P) && cd / && exec timeout -k 1 %d %s --policy %s %s',
    LIMIT_SECONDS, PLANNER, quoted(POLICY), arguments
  )
end

-- What the policy has for a service that does not answer, read here as planner reads it: the file, then the environment
local function unreachable()
  local file = io.open(POLICY, "r")
  local section, action
  for line in file and file:lines() or function() end do
    section = line:match("^%[(.-)%]") or section
    if section == "admission" then
      action = line:match("^unreachable%s*[=:]%s*(%a+)") or action
    end
  end
  if file then
    file:close()
  end
  return (action or os.getenv("PLANNER_ADMISSION_UNREACHABLE") or "admit"):lower()
end

-- action, verdict, plan id, text; nil if the planner's side does not work
local function ask(spec, options)
  local asking = ""
  for _, name in ipairs(ASKING) do
    if (options[name] or "") ~= "" then
      asking = asking .. " --" .. name .. "=" .. quoted(options[name])
    end
  end
  local pipe = io.popen(command('submit --folder "$folder"' .. asking .. " -- " .. quoted(spec)))
  if not pipe then
    return nil
  end
  local said = pipe:read("*a")
  pipe:close()
  local action, verdict, plan, text = said:match("^(%l+)\n(%l*)\n([^\n]*)\n(.*)$")
  return action, verdict, plan, text
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  local comment = options["comment"] or ""
  local spec = comment:match("planner:(%S+)")
  if not spec or (options["type"] == "srun" and os.getenv("SLURM_JOB_ID")) then
    return slurm.SUCCESS -- no spec, or a step of a job that runs
  end
  local action, verdict, plan, text = ask(spec, options)
  if not action then
    say("planner: warning: the job is not checked: the planner's command does not work here")
    action, verdict, plan, text = unreachable(), "broken", "", "planner: the job is not checked"
  end
  say((text:gsub("%s+$", "")))
  if action ~= "admit" and action ~= "warn" then
    say("planner: nothing was submitted")
    return slurm.ERROR
  end
  local note = "planner:" .. (plan ~= "" and verdict ~= "pending" and plan or verdict)
  options["comment"] = comment:gsub("planner:%S+", (note:gsub("%%", "%%%%")), 1)
  plans[offset] = plan ~= "" and verdict ~= "pending" and plan or nil
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  local plan = plans[offset]
  if plan then -- in the background: the job is submitted, nobody waits for a note about it
    os.execute("(" .. command(string.format("bind %d %s", job_id, quoted(plan))) .. ") </dev/null >/dev/null 2>&1 &")
    plans[offset] = nil
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS

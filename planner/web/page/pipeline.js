/** The pipeline of a plan: its stages, what each takes, and in which order it works. */

/** Nothing for a job without one. */
export function pipelineView() {
  return null;
}

// Questions for a first visit, of kinds that the embedded pair solves, harder ones last.

export const QUESTIONS = [
  "Rosa has 6 bags with 17 marbles each. She gives 25 of the marbles to Ben. How many marbles does she have left?",
  "What is 37*46+12?",
  "Solve 3*x+14=65 for x.",
  "Ben buys 4 boxes with 12 pens each and shares them equally among 6 friends. How many pens does each friend get?",
];

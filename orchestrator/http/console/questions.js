// Questions for a first visit. With the embedded pair they show: a wrong draft that the large model
// writes again; drafts that are kept; a takeover after three corrections; a corrected digit.

export const QUESTIONS = [
  "A school buys nine toys at 17 dollars each as well as three balls at eight dollars each. How much does the school spend?",
  "Rosa has 6 bags with 17 marbles each. She gives 25 of the marbles to Ben. How many marbles does she have left?",
  "What is 37*46+12?",
  "Lucas sold 475 balls on Monday, 442 on Tuesday and 134 on Friday. How many did Lucas sell in all?",
];
